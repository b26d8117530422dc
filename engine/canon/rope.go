package canon

/*
#include "engine.h"
*/
import "C"

import "fmt"

// Pairing says which channels rotate together.
type Pairing uint8

// Pairings of a rotated part of width n: Half pairs (j, j+n/2), Pairs pairs (2j, 2j+1) and restores in place.
const (
	Half Pairing = iota
	Pairs
)

// RopeKind is how frequencies are derived from theta.
type RopeKind uint8

// Kinds, with base_j = theta^(2j/rot).
const (
	RopeDefault RopeKind = iota // 1/base
	RopeLinear                  // 1/(base*Factor)
	RopeLlama3                  // long wavelengths divided by Factor, a ramp between
	RopeYarn                    // ramp between interpolation and extrapolation
	RopeLong                    // 1/(base*divisor), with divisors for sequences of up to Original tokens and for longer ones (Step.Long)
)

// RopeSpec describes rotary frequencies. Fields beside Theta and Rot are read only by the kinds that name them.
type RopeSpec struct {
	Kind      RopeKind
	Theta     float64
	Rot       int     // rotated channels, even
	Factor    float64 // linear, llama3, yarn
	Original  float64 // llama3, yarn, long: original_max_position_embeddings
	LowFreq   float64 // llama3: low_freq_factor
	HighFreq  float64 // llama3: high_freq_factor
	BetaFast  float64 // yarn; 0 = 32
	BetaSlow  float64 // yarn; 0 = 1
	Truncate  bool    // yarn: floor and ceiling of the ramp's ends
	Alpha     float64 // theta is multiplied by Alpha^(Rot/(Rot-2)) first; 0 = not
	Attention float64 // factor on cosines and sines; 0 = as the kind says (yarn: 0.1 ln(Factor) + 1 or MScale rules; long: sqrt(1 + ln(Factor)/ln(Original)); else 1)
	MScale    float64 // yarn
	MScaleAll float64 // yarn: mscale_all_dim

	Short, Long   []float64 // long: [Rot/2] divisors
	LongAttention float64   // long: Attention of longer sequences; 0 = by the same formula
}

// Rope holds inverse frequencies (rule 5: own double code, rounded once to f32) and the attention factor. Immutable.
// Cosines and sines of a step's positions are computed at its start, once for all layers.
type Rope struct {
	spec   RopeSpec
	c      C.canon_rope_spec
	inv    []float32 // [rot/2], off-heap
	factor float64

	longInv    []float32 // of long sequences; nil = the same for all
	longFactor float64
}

// NewRope computes the frequencies.
func (a *Arena) NewRope(s RopeSpec) (*Rope, error) {
	if s.Rot <= 0 || s.Rot%2 != 0 || !(s.Theta > 0) {
		return nil, fmt.Errorf("canon: rope: %d rotated channels with theta %v; an even number and a positive theta are needed", s.Rot, s.Theta)
	}
	if s.Alpha < 0 || s.Alpha > 0 && s.Rot == 2 {
		return nil, fmt.Errorf("canon: rope: alpha %v with %d rotated channels", s.Alpha, s.Rot)
	}
	if s.Kind > RopeLong {
		return nil, fmt.Errorf("canon: rope: unknown kind %d", s.Kind)
	}
	if s.Kind != RopeDefault && !(s.Factor > 0) {
		return nil, fmt.Errorf("canon: rope: factor %v must be positive", s.Factor)
	}
	if s.Kind >= RopeLlama3 && !(s.Original > 0) {
		return nil, fmt.Errorf("canon: rope: original_max_position_embeddings %v must be positive", s.Original)
	}
	if s.Kind == RopeLlama3 && !(s.HighFreq > s.LowFreq && s.LowFreq > 0) {
		return nil, fmt.Errorf("canon: rope: low and high frequency factors %v, %v must ascend", s.LowFreq, s.HighFreq)
	}
	if s.Kind == RopeLong && (len(s.Short) != s.Rot/2 || len(s.Long) != s.Rot/2 || s.Alpha != 0) {
		return nil, fmt.Errorf("canon: rope: %d and %d divisors for %d pairs", len(s.Short), len(s.Long), s.Rot/2)
	}
	if s.BetaFast == 0 {
		s.BetaFast = 32
	}
	if s.BetaSlow == 0 {
		s.BetaSlow = 1
	}
	inv, err := a.Floats(s.Rot / 2)
	if err != nil {
		return nil, err
	}
	c := C.canon_rope_spec{kind: C.int32_t(s.Kind), rot: C.int32_t(s.Rot), theta: C.double(s.Theta), alpha: C.double(s.Alpha), factor: C.double(s.Factor), original: C.double(s.Original),
		low: C.double(s.LowFreq), high: C.double(s.HighFreq), beta_fast: C.double(s.BetaFast), beta_slow: C.double(s.BetaSlow),
		attention: C.double(s.Attention), mscale: C.double(s.MScale), mscale_all: C.double(s.MScaleAll)}
	if s.Truncate {
		c.truncate = 1
	}
	r := &Rope{spec: s, c: c, inv: inv}
	if s.Kind == RopeLong {
		if r.longInv, err = a.Floats(s.Rot / 2); err != nil {
			return nil, err
		}
		long := c
		long.attention = C.double(s.LongAttention)
		r.factor = float64(C.canon_rope_divided(&c, (*C.double)(&s.Short[0]), (*C.float)(&inv[0])))
		r.longFactor = float64(C.canon_rope_divided(&long, (*C.double)(&s.Long[0]), (*C.float)(&r.longInv[0])))
		return r, nil
	}
	r.factor = float64(C.canon_rope_frequencies(&c, (*C.float)(&inv[0])))
	return r, nil
}

// InvFreq returns the inverse frequencies [Rot/2], of long sequences or of others; read only.
func (r *Rope) InvFreq(long bool) []float32 {
	if long && r.longInv != nil {
		return r.longInv
	}
	return r.inv
}

// AttentionFactor is the factor on cosines and sines, of long sequences or of others.
func (r *Rope) AttentionFactor(long bool) float64 {
	if long && r.longInv != nil {
		return r.longFactor
	}
	return r.factor
}

// LatentScale is the factor on the scores of latent attention over heads of width dim: dim^-0.5, times the square of yarn's
// 0.1 * MScaleAll * ln(Factor) + 1 where MScaleAll is given.
func (r *Rope) LatentScale(dim int) float32 {
	return float32(C.canon_rope_scale(&r.c, C.int32_t(dim)))
}
