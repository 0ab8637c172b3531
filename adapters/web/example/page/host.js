// What a host does around the panel: it spawns tasks, and it hears when a row is
// opened.
const said = document.getElementById('said');

for (const button of document.querySelectorAll('[data-spawn]')) {
  button.addEventListener('click', async () => {
    try {
      const response = await fetch(`spawn/${button.dataset.spawn}`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' });
      if (!response.ok) throw new Error(await response.text());
      const task = await response.json();
      said.textContent = `Spawned “${task.subject}” in session ${task.parent_session_id}.`;
    } catch (e) {
      said.textContent = `Nothing was spawned: ${e.message}`;
    }
  });
}

document.addEventListener('subagent:open', (e) => {
  said.textContent = `You opened “${e.detail.subject}” (${e.detail.status}).`;
});
