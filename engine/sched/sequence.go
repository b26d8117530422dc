package sched

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"sync/atomic"
	"time"

	"covey/engine/canon"
	"covey/engine/kv"
	"covey/engine/model"
	"covey/engine/sample"
)

// sequence is one request on its way: prompt and answer as one list of tokens, of which the first kv.Len() lie in the
// cache. Everything but cancelled belongs to whoever holds the sequence: the queue's lock, then the scheduler's goroutine.
type sequence struct {
	id        uint64
	req       Request
	stream    *Stream
	cancelled atomic.Bool
	release   func() bool // stops watching the caller's context

	place    int          // last place in the queue that was reported; -1 = none
	order    uint64       // admission number
	lastStep uint64       // last step it had rows in
	kv       *kv.Sequence // nil while it waits
	ban      *model.Ban
	router   int  // where its rows begin, if req.From is set
	long     bool // runs as a long sequence

	tokens   []int32 // prompt and answer
	prompt   int     // length of the prompt
	recorded int     // rows before this position have been accounted for; a sequence that was put back runs them again in silence
	state    *sample.State
	chosen   choice // of the step in hand
	share    int    // prefill rows of the step that is being put together
	text     Decoder
	stops    stopper
	held     *Output // latest token, kept back while text that hangs on it may still change
	hash     hash.Hash
	result   Result

	submitted, firstStep, firstToken time.Time
	started                          bool
}

func newSequence(r Request, ban *model.Ban, decoder func() Decoder) *sequence {
	q := &sequence{
		req:       r,
		place:     -1,
		ban:       ban,
		tokens:    slices.Grow(slices.Clone(r.Prompt), min(r.MaxTokens, 1<<10)),
		prompt:    len(r.Prompt),
		submitted: time.Now(),
		result:    Result{PromptTokens: len(r.Prompt)},
	}
	if r.MaxTokens > 0 {
		q.state = sample.NewState(r.Sampling, r.Choice, r.Prompt)
		q.text = decoder()
		q.stops = newStopper(slices.Clone(r.Stops))
	}
	if r.Hash {
		q.hash = sha256.New()
	}
	q.req.Prompt, q.req.Banned, q.req.Stops, q.req.Sampling, q.req.Keep = nil, nil, nil, sample.Params{}, nil // held by tokens, ban, stops, state and result now
	return q
}

// left is the number of tokens whose rows have not run.
func (q *sequence) left() int { return len(q.tokens) - q.kv.Len() }

// decodes says whether the next row is that of the latest answer token.
func (q *sequence) decodes() bool { return q.left() == 1 && len(q.tokens) > q.prompt }

// wantsLast says whether the logits of the last row of tokens are used.
func (q *sequence) wantsLast() bool { return q.req.MaxTokens > 0 || q.req.Hash }

// onlyToken says whether of the last row's logits nothing is wanted but the token that they choose.
func (q *sequence) onlyToken() bool { return q.req.MaxTokens > 0 && !q.req.Hash && q.req.Logprobs < 0 }

// wantsPrompt says whether the logits of a prompt row before the last are used.
func (q *sequence) wantsPrompt(position int) bool {
	return q.req.PromptLogprobs && position >= q.recorded && position < q.prompt-1
}

// begin notes the start of the first step.
func (q *sequence) begin(at time.Time) {
	if !q.started {
		q.started = true
		q.firstStep = at
		q.result.QueueNanos = at.Sub(q.submitted).Nanoseconds()
	}
}

// promptRow takes the logits of a prompt row before the last.
func (q *sequence) promptRow(position int, logits []float32) error {
	lp, _, err := sample.Logprobs(logits, q.tokens[position+1], 0)
	if err != nil {
		return fmt.Errorf("sched: logits of position %d: %w", position, err)
	}
	q.result.PromptLogprobs = append(q.result.PromptLogprobs, lp)
	return nil
}

// choice is the token that follows a sequence's last row.
type choice struct {
	token   int32
	ends    bool // it ends the answer and is no part of it
	logprob float32
	top     []sample.Logprob
	err     error
}

// choose takes the logits of the last row: it hashes them, and chooses the next token unless one was drawn. Different
// sequences may choose at the same time.
func (q *sequence) choose(logits []float32, drawn int32, eos []int32) {
	if q.hash != nil {
		canon.HashBits(q.hash, logits)
	}
	if q.req.MaxTokens == 0 {
		return
	}
	c, position := choice{}, len(q.tokens)
	if c.token = drawn; drawn < 0 {
		c.token, c.err = q.state.Choose(logits, position)
	}
	if c.err != nil {
		c.err = fmt.Errorf("sched: choosing the token for position %d: %w", position, c.err)
	} else if c.ends = !q.req.IgnoreEOS && slices.Contains(eos, c.token); !c.ends && q.req.Logprobs >= 0 {
		if c.logprob, c.top, c.err = sample.Logprobs(logits, c.token, q.req.Logprobs); c.err != nil {
			c.err = fmt.Errorf("sched: logits of position %d: %w", position-1, c.err)
		}
	}
	q.chosen = c
}

// lastRow goes on with the chosen token and hands it on; o carries what else is known of the row. It returns the finish
// reason, or "" if the request goes on.
func (q *sequence) lastRow(o Output, context int) (finish string, err error) {
	switch c := q.chosen; {
	case q.req.MaxTokens == 0:
		return FinishLength, nil
	case c.err != nil:
		return FinishError, c.err
	case c.ends:
		return FinishStop, nil
	default:
		o.Kind, o.Position, o.Token, o.Logprob, o.Top = KindToken, len(q.tokens), c.token, c.logprob, c.top
	}
	q.state.Add(o.Token)
	q.tokens = append(q.tokens, o.Token)
	q.result.Tokens = append(q.result.Tokens, o.Token)
	at := time.Now()
	if len(q.result.Tokens) == 1 {
		q.firstToken = at
		q.result.PrefillNanos = at.Sub(q.firstStep).Nanoseconds()
	}
	q.result.DecodeNanos = at.Sub(q.firstToken).Nanoseconds()

	o.Text, q.result.Stop = q.stops.add(q.text.Push(o.Token))
	switch {
	case q.result.Stop != "":
		finish = FinishStop
	case len(q.result.Tokens) == q.req.MaxTokens || len(q.tokens) == context:
		finish = FinishLength
	}
	q.hold(o)
	return finish, nil
}

// hold hands on the output before o, and o too unless text hangs on it: an incomplete character or the beginning of a
// stop text, which belong to o if the answer ends here. So at most one token is late, by one step.
func (q *sequence) hold(o Output) {
	if q.held != nil {
		q.stream.token(*q.held)
		q.held = nil
	}
	if q.stops.held != "" || q.text.Pending() {
		q.held = &o
		return
	}
	q.stream.token(o)
}

// end releases what was held back and closes the stream.
func (q *sequence) end(finish string, err error) {
	if q.held != nil {
		if q.result.Stop == "" {
			rest, stop := q.stops.add(q.text.Flush())
			q.held.Text += rest + q.stops.flush()
			q.result.Stop = stop
		}
		q.stream.token(*q.held)
		q.held = nil
	}
	q.result.Finish, q.result.Err = finish, err
	if q.hash != nil {
		q.result.Hash = hex.EncodeToString(q.hash.Sum(nil))
	}
	q.stream.finish(&q.result)
}
