package queue

import (
	"context"
	"fmt"
	"sync"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/engine"

	"github.com/nats-io/nats.go/jetstream"
)

// Model is an atlas.Model whose forwards are done by whoever works for it. Made by Open.
type Model struct {
	local atlas.Model
	conn  *Conn
	run   string
	stop  func()

	mu      sync.Mutex
	waiting map[string][]chan []byte // by key
	early   map[string][]byte        // answers of an earlier life of the run, not yet asked for
	opened  bool                     // those have arrived
}

// Open makes a model for one run (a job's id, or any name that no other run has). local describes the model and makes
// tokens of texts; its Forward is not called. Answers that an earlier life of the run has not taken are taken now, and
// work that it has left is withdrawn: what is missing is asked for again.
func (c *Conn) Open(ctx context.Context, local atlas.Model, run string) (*Model, error) {
	m := &Model{local: local, conn: c, run: token(run), waiting: map[string][]chan []byte{}, early: map[string][]byte{}}
	if err := m.withdraw(ctx); err != nil {
		return nil, err
	}
	consumer, err := c.results.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{answers + m.run + ".*"}})
	if err != nil {
		return nil, fmt.Errorf("queue: waiting for answers: %w", err)
	}
	caught := make(chan struct{})
	left := consumer.CachedInfo().NumPending
	if left == 0 {
		close(caught)
	}
	consuming, err := consumer.Consume(func(message jetstream.Msg) {
		m.take(message.Subject()[len(answers)+len(m.run)+1:], message.Data())
		if left > 0 {
			if left--; left == 0 {
				close(caught)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("queue: waiting for answers: %w", err)
	}
	m.stop = consuming.Stop
	select {
	case <-caught:
		m.mu.Lock()
		m.opened = true
		m.mu.Unlock()
		return m, nil
	case <-ctx.Done():
		consuming.Stop()
		return nil, ctx.Err()
	}
}

// withdraw takes the run's work out of the queue.
func (m *Model) withdraw(ctx context.Context) error {
	if err := m.conn.work.Purge(ctx, jetstream.WithPurgeSubject(subject(m.local.Info())+m.run)); err != nil {
		return fmt.Errorf("queue: withdrawing work: %w", err)
	}
	return nil
}

// Close stops asking and withdraws work that nobody has begun. over = the run has ended and its answers are let go;
// otherwise they stay for its next life.
func (m *Model) Close(ctx context.Context, over bool) error {
	m.stop()
	if err := m.withdraw(ctx); err != nil || !over {
		return err
	}
	if err := m.conn.results.Purge(ctx, jetstream.WithPurgeSubject(answers+m.run+".*")); err != nil {
		return fmt.Errorf("queue: letting answers go: %w", err)
	}
	return nil
}

// Info describes the model.
func (m *Model) Info() engine.ModelInfo { return m.local.Info() }

// Encode turns a probe into tokens.
func (m *Model) Encode(p probes.Probe) (atlas.Prompt, error) { return m.local.Encode(p) }

// take hands an answer to whoever waits for it. What nobody waits for is kept while the run's earlier answers arrive, and
// dropped later: it is the second answer to work that was done twice.
func (m *Model) take(key string, answer []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.waiting[key]
	delete(m.waiting, key)
	for _, c := range list {
		c <- answer
	}
	if len(list) == 0 && !m.opened {
		m.early[key] = answer
	}
}

// Forward asks for one reading and waits for the answer.
func (m *Model) Forward(ctx context.Context, tokens []int32, o atlas.ForwardOptions) (atlas.Forward, error) {
	work := question{tokens, o}.encode()
	if most := m.conn.nats.MaxPayload(); int64(len(work)) > most {
		return atlas.Forward{}, fmt.Errorf("queue: a text of %d bytes: the server takes %d (its setting max_payload)", len(work), most)
	}
	k := key(work)
	m.mu.Lock()
	if answer, ok := m.early[k]; ok {
		delete(m.early, k)
		m.mu.Unlock()
		return decodeAnswer(m.Info().Shape, answer)
	}
	answer := make(chan []byte, 1)
	m.waiting[k] = append(m.waiting[k], answer)
	m.mu.Unlock()
	if _, err := m.conn.js.Publish(ctx, subject(m.Info())+m.run, work); err != nil {
		return atlas.Forward{}, fmt.Errorf("queue: asking: %w", err)
	}
	select {
	case b := <-answer:
		return decodeAnswer(m.Info().Shape, b)
	case <-ctx.Done():
		return atlas.Forward{}, ctx.Err()
	}
}
