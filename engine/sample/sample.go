// Package sample holds what a caller may ask of the choice of the next token: parameters, their limits, and the state
// that penalties need of one sequence. The arithmetic (rule 11 of the numerics) is canonical and lives in engine/canon;
// this package never adds or multiplies a float that can reach a token.
package sample

// Params say how tokens are chosen from logits. The zero value is greedy choice with nothing switched on.
type Params struct {
	Temperature       float32           // 0 (greedy) to 2; divides the logits
	TopK              int               // keep the k most likely; 0 = all
	TopP              float32           // nucleus, (0, 1]; 0 = off like 1
	MinP              float32           // drop what is less likely than MinP times the most likely, [0, 1); 0 = off
	RepetitionPenalty float32           // (0, 2]: divides positive and multiplies negative logits of tokens seen in prompt or answer; 0 = off like 1
	FrequencyPenalty  float32           // -2 to 2: subtracted once for each time the answer already holds the token
	PresencePenalty   float32           // -2 to 2: subtracted once if the answer already holds the token
	PenaltyWindow     int               // penalties look at this many latest tokens of the sequence; 0 = all of it
	Seed              uint64            // random key, beside choice index and position
	LogitBias         map[int32]float32 // added to the logits of these tokens before everything else, -100 to 100; the map is not changed while a request runs
}

// Logprob is a token with its natural log-probability.
type Logprob struct {
	ID      int32
	Logprob float32
}
