package sched

import "time"

// How long a step may take whose end somebody waits for: so long that a reader hardly notices, or, where a token alone takes
// longer than that, a few times as long as one, so that reading prompts stays worth the weights it moves.
const (
	shortStep  = 100 * time.Millisecond
	fewTokens  = 4
	leastRows  = 16 // prefill rows of such a step at least: below it most of a step's time goes into weights, not rows
	paceWeight = 2  // a new measurement moves the estimate by one part in so many
)

// pace learns from steps what rows cost: a step takes about token + row * prefill rows.
type pace struct {
	token time.Duration // a step without prefill rows; 0 = not known
	row   time.Duration // what one prefill row adds; 0 = not known
}

// learn takes the account of one step.
func (p *pace) learn(decode, prefill int, took time.Duration) {
	move := func(estimate *time.Duration, to time.Duration) {
		if *estimate == 0 {
			*estimate = to
		}
		*estimate += (to - *estimate) / paceWeight
	}
	switch {
	case prefill == 0:
		move(&p.token, took)
	case prefill >= leastRows || p.row == 0: // fewer rows say little about one
		if decode > 0 {
			took = max(took-p.token, took/2) // the token's share is an estimate: it may be too large today
		}
		move(&p.row, max(took/time.Duration(prefill), 1))
	}
}

// rows is how many prefill rows, at most most, fit in a step whose end somebody waits for.
func (p *pace) rows(most int) int {
	n := most / 4
	if p.row > 0 {
		n = int((max(shortStep, fewTokens*p.token) - p.token) / p.row)
	}
	return min(max(n, leastRows), most)
}
