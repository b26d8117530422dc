package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"covey/atlas"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// askFor is how long a worker's request for work stands before it asks anew.
const askFor = 5 * time.Second

// Work does forwards for a model of these bytes and numerics, of whatever run, until ctx ends; it returns nil then.
// inFlight forwards are done at once, so that they share steps. done is called after each, from several goroutines; nil
// = nobody wants to know. A forward that the model refuses is answered with the reason.
func (c *Conn) Work(ctx context.Context, m atlas.Model, inFlight int, done func()) error {
	info := m.Info()
	prefix := subject(info)
	consumer, err := c.work.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "model_" + token(info.Hash) + "_" + token(info.NumericsID), FilterSubject: prefix + "*",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: lease, MaxAckPending: -1, InactiveThreshold: resultsKept,
	})
	if err != nil {
		return fmt.Errorf("queue: asking for work: %w", err)
	}
	group, running := errgroup.WithContext(ctx)
	for range max(1, inFlight) {
		group.Go(func() error {
			for running.Err() == nil {
				message, err := next(running, consumer)
				switch {
				case err == nil:
				case running.Err() != nil:
					return nil
				case c.nats.IsClosed():
					return fmt.Errorf("queue: asking for work: %w", err)
				default: // nothing to do, or the server is away for a while
					if !errors.Is(err, context.DeadlineExceeded) {
						pause(running)
					}
					continue
				}
				if err := c.do(running, m, message, message.Subject()[len(prefix):]); err != nil {
					return err
				}
				if done != nil {
					done()
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// next waits for work, askFor at most.
func next(ctx context.Context, consumer jetstream.Consumer) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	return consumer.Next(jetstream.FetchContext(ctx))
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// do computes one forward, answers, and acknowledges.
func (c *Conn) do(ctx context.Context, m atlas.Model, message jetstream.Msg, run string) error {
	renew := time.NewTicker(lease / 3)
	defer renew.Stop()
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		for {
			select {
			case <-renew.C:
				_ = message.InProgress() // without it the work is handed on, and done twice
			case <-finished:
				return
			}
		}
	}()
	answer, err := c.answer(ctx, m, message.Data())
	if ctx.Err() != nil {
		_ = message.Nak() // another may have it at once
		return nil
	}
	if err != nil {
		answer = encodeFailure(err)
	}
	if most := c.nats.MaxPayload(); int64(len(answer)) > most {
		answer = encodeFailure(fmt.Errorf("an answer of %d bytes: the server takes %d (its setting max_payload)", len(answer), most))
	}
	if _, err := c.js.Publish(ctx, answers+run+"."+key(message.Data()), answer); err != nil {
		if ctx.Err() != nil {
			_ = message.Nak()
			return nil
		}
		return fmt.Errorf("queue: answering: %w", err)
	}
	_ = message.Ack() // lost, the work is done once more
	return nil
}

func (c *Conn) answer(ctx context.Context, m atlas.Model, work []byte) ([]byte, error) {
	q, err := decodeQuestion(work)
	if err != nil {
		return nil, err
	}
	f, err := m.Forward(ctx, q.tokens, q.options)
	if err != nil {
		return nil, err
	}
	return encodeAnswer(m.Info().Shape, f)
}
