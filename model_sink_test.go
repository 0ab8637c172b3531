package subagent_test

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

// modelSink takes cards and notices.
type modelSink struct {
	mu      sync.Mutex // guards what follows
	cards   map[uuid.UUID]subagent.Card
	notices map[uuid.UUID]int
}

func (s *modelSink) PutCard(_ context.Context, c subagent.Card) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cards == nil {
		s.cards = map[uuid.UUID]subagent.Card{}
	}
	s.cards[c.TaskID] = c
	return nil
}

func (s *modelSink) Notify(_ context.Context, t subagent.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notices == nil {
		s.notices = map[uuid.UUID]int{}
	}
	s.notices[t.ID]++
	return nil
}

func (s *modelSink) card(id uuid.UUID) subagent.Card {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cards[id]
}

func (s *modelSink) noticesOf(id uuid.UUID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notices[id]
}
