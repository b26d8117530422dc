package model

// Options say how a model is loaded. The zero value of a field means its default.
type Options struct {
	Threads     int    // C worker threads; 0 = physical cores available to the process
	ISA         string // "", portable, avx2, avx512, vnni; "" = best this machine has
	KV          string // f16 (default), bf16 or f32
	Activations string // int8 (default: rule 1) or f32 (weights dequantised, rule 3; for checking)
	MaxRows     int    // most rows of a step; 0 = 256
	MaxSlots    int    // most sequences in a step; 0 = 16
	MaxLogits   int    // most rows of a step that want logits; 0 = MaxRows
	Context     int    // longest sequence in tokens; 0 = the model's own limit
	KVTokens    int    // capacity of the KV cache in tokens over all sequences; 0 = 2 * Context
}
