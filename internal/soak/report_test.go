package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// page is what the report says of one store.
func (s *soak) page() string {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	c := &s.m.count
	var b strings.Builder
	say := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s: %d tasks in %.1f s, seed %d\n", s.name, len(s.m.tasks), s.took.Seconds(), s.seed)
	say("operations", "%s", table(c.calls))
	say("refused", "%s", table(c.refusals))
	say("ends", "%s", table(c.ends))
	say("processes", "%d killed, %d ended in order; %d tasks recovered as lost; %d lines cut off", c.kills, c.restarts, c.recovered, c.torn)
	say("delivered", "%d notices, %d of them again after a kill; %d ends handed to a waiter first, %d while their notice was under way, %d notices while another process handed it out; %d lost in a kill",
		c.notices, c.repeated, c.firsts, c.overlaps, c.abroad, c.lostDeliveries)
	say("told", "%d cards (%d refused, %d left behind by a kill), %d events over WebSocket (%d ends of lost tasks again)", c.cards, c.cardsRefused, c.staleCards, c.events, c.toldAgain)
	say("longest", "queue %d; acknowledgement %v (%s)", c.queue, c.slowest.Round(10_000), c.slowestOp)
	say("faults", "%d", len(s.m.faults))
	return b.String()
}

// table is numbers by name, the largest first.
func table(n map[string]int) string {
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		if n[a] != n[b] {
			return n[b] - n[a]
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", n[name], name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
