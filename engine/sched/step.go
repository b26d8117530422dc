package sched

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/route"
)

// part is the consecutive rows of one sequence in a step.
type part struct {
	q      *sequence
	row, n int
	logits [][]float32 // of the rows that want them
	drawn  int32       // token that the model drew behind the last of them; -1 = none
}

// plan chooses the rows of the next step and leaves them in batch and parts, which stay empty if there is nothing to do.
func (s *Scheduler) plan() {
	s.parts = s.parts[:0]
	b := &s.batch
	b.Tokens, b.Positions, b.Sequence, b.Pages, b.LogitRows, b.Banned = b.Tokens[:0], b.Positions[:0], b.Sequence[:0], b.Pages[:0], b.LogitRows[:0], nil
	b.Draws = b.Draws[:0]
	b.States, b.Long, b.Keep, b.From = b.States[:0], b.Long[:0], nil, nil
	s.reserve()
	var decode, prefill, background, resumed []*sequence
	for _, q := range s.running {
		switch {
		case q.req.From != nil:
			resumed = append(resumed, q)
		case q.decodes():
			decode = append(decode, q)
		case q.req.Background:
			background = append(background, q)
		default:
			prefill = append(prefill, q)
		}
	}
	// Rows that begin at a router cannot share a step with others: they take every second one.
	if others := len(decode) + len(prefill) + len(background); len(resumed) > 0 && (others == 0 || s.stats.Steps%2 == 0) {
		s.resume(resumed)
		return
	}
	most := min(s.o.BatchRows, s.o.LogitRows)
	if len(prefill)+len(background) > 0 { // answers never take a whole step while prompts wait
		most = max(most-1, int(s.stats.Steps%2))
	}
	if len(decode) > most {
		waitedLongest(decode)
		decode = decode[:most]
	}
	for _, q := range decode {
		s.add(q, 1)
	}
	left := s.o.BatchRows - len(decode)
	short := s.pace.rows(s.o.BatchRows)
	if len(decode) > 0 {
		left = min(left, short)
	} else if need, ends := shortest(prefill); ends && need < left {
		left = max(min(left, short), need)
	}
	left = s.deal(prefill, left)
	s.deal(background, s.behind(left))
}

// resume plans a step of the rows that begin where the sequence admitted first does.
func (s *Scheduler) resume(qs []*sequence) {
	router := qs[0].router
	qs = slices.DeleteFunc(qs, func(q *sequence) bool { return q.router != router })
	s.batch.Router = router
	s.deal(qs, s.behind(s.o.BatchRows))
}

// behind limits background rows to what does not make an ordinary request's steps much longer.
func (s *Scheduler) behind(rows int) int {
	if s.foreground() {
		return min(rows, max(1, s.pace.rows(s.o.BatchRows)/4))
	}
	return rows
}

// shortest is how many rows a step must have so that deal gives the prompt with the fewest rows left all of them; ok if there
// are others too. A lone prompt is read in steps as long as may be.
func shortest(qs []*sequence) (rows int, ok bool) {
	if len(qs) < 2 {
		return 0, false
	}
	n := slices.MinFunc(qs, func(a, b *sequence) int { return cmp.Compare(a.left(), b.left()) }).left()
	return n + (n+2)/3, true
}

// foreground says whether an ordinary request runs.
func (s *Scheduler) foreground() bool {
	return slices.ContainsFunc(s.running, func(q *sequence) bool { return !q.req.Background })
}

// reserve makes sure that every running sequence has pages for its next rows, at the cost of the youngest. The oldest
// always fits, because the cache holds at least one whole context.
func (s *Scheduler) reserve() {
	for _, q := range slices.Clone(s.running) {
		for q.kv != nil && q.kv.Reserve(len(q.tokens)) != nil {
			s.mu.Lock()
			s.preempt(s.youngest(false))
			s.mu.Unlock()
		}
	}
}

func waitedLongest(qs []*sequence) {
	slices.SortStableFunc(qs, func(a, b *sequence) int { return cmp.Compare(a.lastStep, b.lastStep) })
}

// deal gives prefill rows to sequences, in order of admission: a quarter to the oldest, so that it gets on however many come
// after it, and the rest to those that need least, so that a short prompt does not wait for a long one. It returns the rows
// that are left.
func (s *Scheduler) deal(qs []*sequence, left int) int {
	if len(qs) == 0 {
		return left
	}
	give := func(q *sequence, most int) {
		n := min(q.left()-q.share, s.o.PrefillRows-q.share, most)
		q.share += n
		left -= n
	}
	give(qs[0], (left+3)/4)
	for _, q := range slices.SortedStableFunc(slices.Values(qs), func(a, b *sequence) int { return cmp.Compare(a.left(), b.left()) }) {
		give(q, left)
	}
	for _, q := range qs {
		left += q.share - s.add(q, q.share)
		q.share = 0
	}
	return left
}

// add appends up to n rows of q to the batch, fewer if the step would want more logits than the model keeps, and returns
// how many.
func (s *Scheduler) add(q *sequence, n int) int {
	b := &s.batch
	first, at := q.kv.Len(), len(b.Tokens)
	for i := range n {
		position := first + i
		if last := position == len(q.tokens)-1; last && q.wantsLast() || q.wantsPrompt(position) {
			if len(b.LogitRows) == s.o.LogitRows {
				n = i
				break
			}
			b.LogitRows = append(b.LogitRows, int32(at+i))
			var draw *canon.SampleParams
			if last && q.onlyToken() {
				draw = q.state.Draw(len(q.tokens))
			}
			b.Draws = append(b.Draws, draw)
		}
		b.Tokens = append(b.Tokens, q.tokens[position])
		b.Positions = append(b.Positions, int32(position))
		b.Sequence = append(b.Sequence, int32(len(b.Pages)))
	}
	if n == 0 {
		return 0
	}
	if q.ban != nil && b.Banned == nil {
		b.Banned = make([]*model.Ban, len(b.Pages), s.o.Sequences)
	}
	if b.Banned != nil {
		b.Banned = append(b.Banned, q.ban)
	}
	if q.result.Residuals != nil && b.Keep == nil {
		b.Keep = make([]*model.Residuals, len(b.Pages), s.o.Sequences)
	}
	if b.Keep != nil {
		b.Keep = append(b.Keep, q.result.Residuals)
	}
	if q.req.From != nil {
		b.From = append(b.From, q.req.From)
	}
	b.Pages, b.States = append(b.Pages, q.kv.Pages()), append(b.States, q.kv.State())
	if s.o.LongFrom > 0 {
		b.Long = append(b.Long, q.long)
	}
	s.parts = append(s.parts, part{q: q, row: at, n: n})
	return n
}

// restart puts every running sequence back after the model has lost what its caches held with a device: they run again, in
// silence up to where they were, and answer the same.
func (s *Scheduler) restart(err error) {
	s.o.Logger.Warn("device lost: the CPU goes on, slower; what runs begins again", "err", err)
	s.lost = true
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range slices.Backward(slices.Clone(s.running)) {
		s.preempt(q)
	}
	s.o.KV.Void()
	s.stats.DeviceLost = true
}

// step runs the batch and hands its results to the sequences.
func (s *Scheduler) step() {
	b := &s.batch
	rows := len(b.Tokens)
	s.mu.Lock()
	s.stats.Steps++
	number := s.stats.Steps
	s.mu.Unlock()
	start := time.Now()
	decode := 0
	for _, p := range s.parts {
		p.q.begin(start)
		p.q.lastStep = number
		if p.q.decodes() {
			decode++
		}
	}
	out, err := s.o.Model.Step(b)
	elapsed := time.Since(start)
	if errors.Is(err, canon.ErrLost) && !s.lost {
		s.restart(err)
		return
	}
	if err != nil {
		err = fmt.Errorf("sched: step %d of %d rows: %w", number, rows, err)
		s.o.Logger.Error("step failed", "err", err)
		for _, p := range s.parts {
			s.end(p.q, FinishError, err)
		}
		return
	}
	if b.From == nil { // rows that begin at a router take less
		s.pace.learn(decode, rows-decode, elapsed)
	}
	s.choose(out)
	generated := 0
	for _, p := range s.parts {
		before := len(p.q.result.Tokens)
		s.take(p, out, number, elapsed)
		generated += len(p.q.result.Tokens) - before
	}
	s.mu.Lock()
	s.stats.Rows += uint64(rows)
	s.stats.DecodeRows += uint64(decode)
	s.stats.PrefillRows += uint64(rows - decode)
	s.stats.Tokens += uint64(generated)
	s.stats.BusyNanos += elapsed.Nanoseconds()
	s.stats.ExpertHits += out.Fetched.Hits
	s.stats.ExpertMisses += out.Fetched.Misses
	s.stats.ExpertBytes += out.Fetched.Bytes
	s.stats.ExpertNanos += out.Fetched.Nanos
	s.mu.Unlock()
}

// choose gives each part its logits and chooses the tokens that follow, on all processors: a choice among 50,000 tokens with
// its alternatives takes a quarter of a millisecond, which a step of many answers would add up.
func (s *Scheduler) choose(out *model.Output) {
	s.due = s.due[:0]
	next := 0
	for i := range s.parts {
		p := &s.parts[i]
		for next < len(s.batch.LogitRows) && int(s.batch.LogitRows[next]) < p.row+p.n {
			p.logits = append(p.logits, out.Logits[next])
			p.drawn = -1
			if out.Drawn != nil {
				p.drawn = out.Drawn[next]
			}
			next++
		}
		if p.n == p.q.left() && p.q.wantsLast() {
			s.due = append(s.due, p)
		}
	}
	var taken atomic.Int32
	work := func() {
		for i := int(taken.Add(1)) - 1; i < len(s.due); i = int(taken.Add(1)) - 1 {
			p := s.due[i]
			p.q.choose(p.logits[len(p.logits)-1], p.drawn, s.o.EOS)
		}
	}
	var group sync.WaitGroup
	for range min(len(s.due), runtime.GOMAXPROCS(0)) - 1 {
		group.Go(work)
	}
	work()
	group.Wait()
}

// take accounts for the rows of one sequence.
func (s *Scheduler) take(p part, out *model.Output, number uint64, elapsed time.Duration) {
	q, first := p.q, p.q.kv.Len()
	if out.Faults != nil {
		for i, err := range out.Faults[p.row : p.row+p.n] {
			if err != nil {
				s.end(q, FinishError, fmt.Errorf("sched: row at position %d: %w", first+i, err))
				return
			}
		}
	}
	q.result.Bytes += s.publish(p, out, number, elapsed)
	q.kv.Append(s.batch.Tokens[p.row : p.row+p.n]...)
	for i := range p.n {
		if q.wantsPrompt(first + i) {
			if err := q.promptRow(first+i, p.logits[0]); err != nil {
				s.end(q, FinishError, err)
				return
			}
			p.logits = p.logits[1:]
		}
	}
	q.recorded = max(q.recorded, first+p.n)
	switch {
	case q.left() > 0:
		q.stream.report(Output{Kind: KindPrefill, Done: q.kv.Len(), Total: len(q.tokens)})
	case !q.wantsLast():
		s.end(q, FinishLength, nil)
	default:
		var o Output
		if q.req.Routing {
			slots := s.o.Shape.Slots()
			at := (p.row + p.n - 1) * slots
			o.IDs, o.Weights = slices.Clone(out.IDs[at:at+slots]), slices.Clone(out.Weights[at:at+slots])
		}
		if finish, err := q.lastRow(o, s.o.Context); finish != "" {
			s.end(q, finish, err)
		}
	}
}

// publish hands on the routing of one part, as copies of the model's slices, to those who want it, and returns the
// expert bytes that it took. Rows that ran before the sequence was put back have been reported then.
func (s *Scheduler) publish(p part, out *model.Output, number uint64, elapsed time.Duration) int64 {
	q, slots := p.q, s.o.Shape.Slots()
	bytes := s.bytes(out.IDs[p.row*slots : (p.row+p.n)*slots])
	from := p.row + max(q.recorded-q.kv.Len(), 0)
	to := p.row + p.n
	if from >= to || q.req.From != nil || !q.req.Routing && s.bus.count.Load() == 0 {
		return bytes
	}
	e := &route.Event{
		Step:      number,
		Sequence:  q.id,
		Position:  int(s.batch.Positions[from]),
		Tokens:    slices.Clone(s.batch.Tokens[from:to]),
		IDs:       slices.Clone(out.IDs[from*slots : to*slots]),
		Weights:   slices.Clone(out.Weights[from*slots : to*slots]),
		Bytes:     bytes,
		StepNanos: elapsed.Nanoseconds(),
	}
	if q.req.Routing {
		q.stream.routed(e)
	}
	s.bus.publish(e)
	return bytes
}

// bytes is the size of the different expert records among ids [rows, layers, k].
func (s *Scheduler) bytes(ids []uint16) int64 {
	clear(s.touched)
	slots, k := s.o.Shape.Slots(), s.o.Shape.TopK
	for i, id := range ids {
		bit := i%slots/k*s.o.Shape.Experts + int(id)
		s.touched[bit/64] |= 1 << (bit % 64)
	}
	var sum int64
	for w, word := range s.touched {
		for ; word != 0; word &= word - 1 {
			sum += s.o.ExpertBytes[(w*64+bits.TrailingZeros64(word))/s.o.Shape.Experts]
		}
	}
	return sum
}
