package main

// Answers at once: when their tokens came, and what the steps that all of them shared read.

import (
	"context"
	"sync"
	"time"

	"covey/engine"
	"covey/engine/route"
)

// answers runs requests at once and returns when the tokens of each came.
func answers(ctx context.Context, eng *engine.Engine, requests []engine.Request) ([][]time.Time, error) {
	times, failed := make([][]time.Time, len(requests)), make([]error, len(requests))
	var group sync.WaitGroup
	for i, r := range requests {
		group.Go(func() {
			_, failed[i] = answer(ctx, eng, r, func(o engine.Output) {
				if o.Kind == engine.KindToken {
					times[i] = append(times[i], time.Now())
				}
			})
		})
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return times, nil
}

// begun is when the last of several answers had its first token.
func begun(times [][]time.Time) (last time.Time) {
	for _, list := range times {
		if first := list[0]; first.After(last) {
			last = first
		}
	}
	return last
}

// joint is the tokens a second of all answers, from when the last has begun to when the first has ended; 0 if they were never
// written at once.
func joint(times [][]time.Time) float64 {
	from, to := begun(times), time.Time{}
	for _, list := range times {
		if last := list[len(list)-1]; to.IsZero() || last.Before(to) {
			to = last
		}
	}
	tokens := 0
	for _, list := range times {
		for _, at := range list {
			if at.After(from) && !at.After(to) {
				tokens++
			}
		}
	}
	return rate(tokens, to.Sub(from).Nanoseconds())
}

// stepReads notes, from now to stop, what weights steps of n sequences with one row each read: those of a step of one row, and
// each further expert that some row chose. stop returns the mean in bytes; without such a step, that of one row.
func stepReads(eng *engine.Engine, n int) (stop func() float64) {
	info := eng.Model()
	events, cancel := eng.Subscribe()
	mean := make(chan float64)
	go func() {
		total, steps, rows, last := 0.0, 0, 0, uint64(0)
		chosen := map[[2]int]bool{} // layer and expert
		for e := range events {
			if e.Step != last {
				rows, last = 0, e.Step
				clear(chosen)
			}
			if e.Rows() != 1 {
				rows = n // reads a prompt: never complete
			}
			note(chosen, e, info.Shape)
			if rows++; rows == n {
				bytes := info.BytesPerToken
				for j, record := range info.RecordBytes {
					bytes -= int64(info.Shape.TopK) * record
					for id := range info.Shape.Experts {
						if chosen[[2]int{j, id}] {
							bytes += record
						}
					}
				}
				total += float64(bytes)
				steps++
			}
		}
		if steps == 0 {
			total, steps = float64(info.BytesPerToken), 1
		}
		mean <- total / float64(steps)
	}()
	return func() float64 { cancel(); return <-mean }
}

// note adds the experts of an event's rows.
func note(chosen map[[2]int]bool, e *route.Event, s route.Shape) {
	for i, id := range e.IDs {
		chosen[[2]int{i / s.TopK % len(s.Layers), int(id)}] = true
	}
}
