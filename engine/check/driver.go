// Package check holds the engine to independent references: tiny checkpoints with the logits, routing and greedy answer
// of another implementation (Oracle), the bundled model's recorded reference (Reference), and itself under another number
// of threads, instruction set, batch and chunk (Hashes).
package check

import (
	"context"
	"fmt"

	"covey/engine/canon"
	"covey/engine/kv"
	"covey/engine/model"
)

// sequence is one prompt on its way through a model.
type sequence struct {
	pages  *kv.Sequence
	tokens []int32 // prompt, then answer
	prompt int
	seen   int // positions reported; a sequence that has grown long runs them again in silence
	long   bool
}

// row is what a driver reports for each row it ran; it views memory of the model until the next step.
type row struct {
	sequence int
	position int
	logits   []float32 // nil where not asked for
	ids      []uint16  // [MoE layers, k]
	weights  []float32 // [MoE layers, k]
	place    int       // row of the step, for model.ChoiceMargin
}

// driver runs sequences greedily through a model in steps of a fixed shape.
type driver struct {
	model *model.Model
	cache *kv.Cache
	chunk int // prefill rows of one sequence in a step
	all   bool
	seen  func(row) error
}

func newDriver(m *model.Model, chunk int, all bool, seen func(row) error) *driver {
	return &driver{model: m, cache: kv.New(m.Info().KVPages, m.Info().States, m.ZeroPage), chunk: chunk, all: all, seen: seen}
}

// run prefills all prompts and then generates n tokens greedily for each, stopping for nothing. Prompts share steps in
// the order given: decode rows and chunks of prefill mix as they come. It returns the generated tokens of each prompt.
// Logits are reported for every prompt row if all is set, otherwise for the last one, and for every generated row.
func (d *driver) run(ctx context.Context, prompts [][]int32, n int) ([][]int32, error) {
	sequences := make([]sequence, len(prompts))
	defer func() {
		for _, s := range sequences {
			if s.pages != nil {
				s.pages.Close()
			}
		}
	}()
	for i, prompt := range prompts {
		if len(prompt) == 0 {
			return nil, fmt.Errorf("check: prompt %d is empty", i)
		}
		s := sequence{pages: d.cache.Open("", nil, 0), tokens: append([]int32(nil), prompt...), prompt: len(prompt)}
		sequences[i] = s
		if err := s.pages.Reserve(len(prompt) + n); err != nil {
			return nil, fmt.Errorf("check: %w", err)
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := d.lengthen(sequences, n); err != nil {
			return nil, err
		}
		ran, err := d.step(sequences, n)
		if err != nil {
			return nil, err
		}
		if !ran {
			break
		}
	}
	answers := make([][]int32, len(prompts))
	for i, s := range sequences {
		answers[i] = s.tokens[s.prompt:]
	}
	return answers, nil
}

// lengthen starts sequences again that have grown long, as the scheduler does.
func (d *driver) lengthen(sequences []sequence, n int) error {
	from := d.model.Spec().LongFrom()
	for i := range sequences {
		s := &sequences[i]
		if from == 0 || s.long || len(s.tokens) <= from {
			continue
		}
		s.long = true
		s.pages.Close()
		s.pages = d.cache.Open("", nil, 0)
		if err := s.pages.Reserve(s.prompt + n); err != nil {
			return fmt.Errorf("check: %w", err)
		}
	}
	return nil
}

// step runs the next rows of every sequence that still has some; false when none has.
func (d *driver) step(sequences []sequence, n int) (bool, error) {
	var b model.Batch
	var rows []row
	info := d.model.Info()
	for i := range sequences {
		s := &sequences[i]
		b.Pages, b.States = append(b.Pages, s.pages.Pages()), append(b.States, s.pages.State())
		b.Long = append(b.Long, s.long)
		first := s.pages.Len()
		last := min(first+d.chunk, len(s.tokens), first+info.MaxRows-len(rows))
		if len(s.tokens) == s.prompt+n && n > 0 {
			last = min(last, len(s.tokens)-1) // the last generated token needs no row
		}
		for p := first; p < last; p++ {
			b.Tokens = append(b.Tokens, s.tokens[p])
			b.Positions = append(b.Positions, int32(p))
			b.Sequence = append(b.Sequence, int32(i))
			rows = append(rows, row{sequence: i, position: p, place: len(rows)})
			if p >= s.seen && (d.all || p >= s.prompt-1) {
				b.LogitRows = append(b.LogitRows, int32(len(rows)-1))
			}
		}
	}
	if len(rows) == 0 {
		return false, nil
	}
	out, err := d.model.Step(&b)
	if err != nil {
		return false, err
	}
	places := info.Shape.Slots()
	for i, r := range b.LogitRows {
		rows[r].logits = out.Logits[i]
	}
	for i, r := range rows {
		if out.Faults != nil && out.Faults[i] != nil {
			return false, fmt.Errorf("check: sequence %d, position %d: %w", r.sequence, r.position, out.Faults[i])
		}
		s := &sequences[r.sequence]
		if r.position >= s.seen {
			r.ids, r.weights = out.IDs[i*places:(i+1)*places], out.Weights[i*places:(i+1)*places]
			if err := d.seen(r); err != nil {
				return false, err
			}
			s.seen++
		}
		s.pages.Append(s.tokens[r.position])
		if r.position == len(s.tokens)-1 && len(s.tokens) < s.prompt+n {
			s.tokens = append(s.tokens, canon.Argmax(r.logits))
		}
	}
	return true, nil
}
