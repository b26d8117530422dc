package main

import (
	"crypto/rand"
	"encoding/binary"

	"covey/engine/sample"
)

// samplingFlags change how tokens are chosen; what is not set comes from the model's own suggestion.
type samplingFlags struct {
	Temperature       *float32 `help:"0 = greedy; larger is more random." placeholder:"T" group:"Sampling"`
	TopP              *float32 `help:"Keep the most likely tokens up to this probability." placeholder:"P" group:"Sampling"`
	TopK              *int     `help:"Keep the k most likely tokens; 0 = all." placeholder:"K" group:"Sampling"`
	MinP              *float32 `help:"Drop tokens less likely than this part of the most likely one." placeholder:"P" group:"Sampling"`
	RepetitionPenalty *float32 `help:"Above 1 makes seen tokens less likely." placeholder:"R" group:"Sampling"`
	Seed              *uint64  `help:"Same seed, same draws; random when not set." placeholder:"N" group:"Sampling"`
}

// params applies the flags to the model's defaults.
func (f samplingFlags) params(defaults sample.Params) sample.Params {
	p := defaults
	set(&p.Temperature, f.Temperature)
	set(&p.TopP, f.TopP)
	set(&p.TopK, f.TopK)
	set(&p.MinP, f.MinP)
	set(&p.RepetitionPenalty, f.RepetitionPenalty)
	if f.Seed != nil {
		p.Seed = *f.Seed
	} else {
		var b [8]byte
		rand.Read(b[:]) // never fails (crypto/rand)
		p.Seed = binary.LittleEndian.Uint64(b[:])
	}
	return p
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
