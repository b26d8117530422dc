package model

// A Spec is an architecture as data. A family's file (glm4_moe.go, ...) turns a checkpoint's config.json into one; the
// forward pass (program.go) reads nothing else, so a new architecture of known parts is one file and an oracle.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"covey/engine/canon"
	"covey/engine/weights"
)

// QKNorm says how queries and keys are normalised.
type QKNorm uint8

// Kinds of query and key norm.
const (
	QKNormNone    QKNorm = iota
	QKNormPerHead        // RMS over each head, one weight [head dim] for all heads
	QKNormWhole          // RMS over the whole projection, weight [heads*head dim]
)

// Attention is grouped-query attention, unless Latent says otherwise: KVHeads key/value heads, each serving Heads/KVHeads consecutive query heads.
type Attention struct {
	Heads, KVHeads, HeadDim int
	QKNorm                  QKNorm
	NormAfterRope           bool // queries and keys are rotated first and then normalised
	QKVBias, OutBias        bool
	Sinks                   bool        // each head has a learned logit without a value
	Clip                    float32     // queries, keys and values are clamped to ±Clip after the norms; 0 = not
	Window                  []int       // [layers] keys seen, a row's own included; 0 = all
	Scale                   float32     // factor on scores; 0 = HeadDim^-0.5
	Latent                  *Latent     // nil = queries, keys and values come straight from the input
	Compressed              *Compressed // nil = positions are attended as they are
	Gate                    bool        // each head of the query projection is followed by as wide a gate, whose sigmoid scales the head's output
}

// MoE is the geometry of the routed layers, equal in all of them.
type MoE struct {
	Experts, TopK int
	Inner         int              // width of one routed expert
	Shared        int              // width of the shared expert, added unweighted; 0 = none
	SharedGate    bool             // the shared expert is scaled by the sigmoid of a gate of its own
	Router        canon.RouterSpec // all but its Bias
	Correction    bool             // the router has a correction bias, which takes part in the choice only
	RouterBias    bool             // the router's logits have a bias
	Bias          bool             // experts have biases
	Stack         Stack            // how experts are stored
	Activation    canon.Activation // of the experts
	Hash          []bool           // [layers] the experts of a token stand in a table; nil = nowhere
}

// Stack says how a layer's experts are stored.
type Stack uint8

// Kinds of storage. In the stacked ones Names.Expert[0] names the tensor of gate and up together and Names.Expert[2] that
// of down; the tensors of all experts of a layer are one, experts outermost.
const (
	StackNone        Stack = iota // three matrices for each expert
	StackRows                     // [out, in] with the rows of gate before those of up
	StackInterleaved              // [in, out] with columns of gate and up in turn, or in MXFP4 [out, in] with such rows
)

// Names are the tensor names of an architecture as patterns: %d is the layer, a second %d the expert. Modules are given
// without ".weight", since a packed module has several tensors.
type Names struct {
	Root                  string // what names begin with that are not listed here
	Embed, Norm, Head     string
	AttentionNorm         string
	Q, K, V, O            string
	QNorm, KNorm          string
	MLPNorm               string
	Dense, Shared, Expert [3]string // gate, up, down
	Router                string
	SharedGate            string
	Delta                 DeltaNames
	Sinks                 string // full tensor name
	Correction            string // full tensor name
	Hash                  string // full tensor name
}

// DeltaNames are the names of a gated delta net; those of vectors are full tensor names.
type DeltaNames struct{ Projections, Rates, Out, Conv, Decay, Shift, Norm string }

// Spec is everything that the forward pass needs to know about a checkpoint. Immutable after ReadSpec.
type Spec struct {
	Architecture          string // config.json's model_type
	Vocab, Hidden, Layers int
	Drafting              int // further layers, behind the others, that only draft tokens and are not loaded
	Context               int // longest sequence that the checkpoint is made for
	NormEps               float32
	NormPlusOne           bool    // norms, those of queries and keys too, store their weight less one
	LayerNorm             bool    // norms subtract the mean and have biases
	EmbedScale            float32 // factor on embeddings
	ResidualScale         float32 // factor on what a block adds to the residual stream
	LogitDivisor          float32
	HeadBias              bool
	Attention             Attention
	Rope                  canon.RopeSpec
	Pairing               canon.Pairing
	Dense                 []bool    // [layers] the layer has a plain feed-forward block instead of experts
	Delta                 *DeltaNet // nil = all layers have attention
	DenseInner            int       // width of that block
	MLPBias               bool      // dense and shared blocks have biases
	MoE                   MoE
	Streams               *Streams // nil = one residual stream
	Tied                  bool     // the head is the embedding unless the checkpoint stores both
	EOS                   []int32  // tokens that end an answer, ascending
	Names                 Names
	published             []Names  // other spellings; the first whose embedding the checkpoint has counts if it has none by Names
	Ignored               []string // configuration keys that were present and do not change the maths, ascending
}

// LongFrom is the number of tokens beyond which a sequence is long (canon.Step.Long): all of it turns by other frequencies then,
// so that what a cache holds of its beginning is of no use. 0 = sequences of all lengths are alike.
func (s *Spec) LongFrom() int {
	if s.Rope.Kind != canon.RopeLong {
		return 0
	}
	return int(s.Rope.Original)
}

// MoELayers lists the layers that have experts, ascending.
func (s *Spec) MoELayers() []int {
	var layers []int
	for l, dense := range s.Dense {
		if !dense {
			layers = append(layers, l)
		}
	}
	return layers
}

// standardNames are the names that most checkpoints of the Hugging Face kind use.
var standardNames = Names{
	Embed: "model.embed_tokens", Norm: "model.norm.weight", Head: "lm_head",
	AttentionNorm: "model.layers.%d.input_layernorm.weight",
	Q:             "model.layers.%d.self_attn.q_proj", K: "model.layers.%d.self_attn.k_proj",
	V: "model.layers.%d.self_attn.v_proj", O: "model.layers.%d.self_attn.o_proj",
	QNorm: "model.layers.%d.self_attn.q_norm.weight", KNorm: "model.layers.%d.self_attn.k_norm.weight",
	MLPNorm:    "model.layers.%d.post_attention_layernorm.weight",
	Dense:      [3]string{"model.layers.%d.mlp.gate_proj", "model.layers.%d.mlp.up_proj", "model.layers.%d.mlp.down_proj"},
	Shared:     [3]string{"model.layers.%d.mlp.shared_experts.gate_proj", "model.layers.%d.mlp.shared_experts.up_proj", "model.layers.%d.mlp.shared_experts.down_proj"},
	Expert:     [3]string{"model.layers.%d.mlp.experts.%d.gate_proj", "model.layers.%d.mlp.experts.%d.up_proj", "model.layers.%d.mlp.experts.%d.down_proj"},
	Router:     "model.layers.%d.mlp.gate",
	SharedGate: "model.layers.%d.mlp.shared_expert_gate",
	Sinks:      "model.layers.%d.self_attn.sinks",
	Correction: "model.layers.%d.mlp.gate.e_score_correction_bias",
}

// families are the known architectures by model_type. Each fills what config.json decides; problems are collected in c.
var families = map[string]func(c *config) Spec{
	"deepseek_v2":    deepseekV2,
	"deepseek_v3":    deepseekV3,
	"deepseek_v32":   deepseekV32,
	"deepseek_v4":    deepseekV4,
	"dots1":          dots1,
	"ernie4_5_moe":   ernie4_5MoE,
	"glm4_moe":       glm4MoE,
	"glm4_moe_lite":  glm4MoELite,
	"glm_moe_dsa":    glmMoEDSA,
	"gpt_oss":        gptOss,
	"granitemoe":     graniteMoE,
	"hunyuan_v1_moe": hunyuanV1MoE,
	"minimax_m2":     minimaxM2,
	"mixtral":        mixtral,
	"olmoe":          olmoe,
	"phimoe":         phiMoE,
	"qwen2_moe":      qwen2MoE,
	"qwen3_moe":      qwen3MoE,
	"qwen3_next":     qwen3Next,
}

// Architectures lists the known values of model_type, ascending.
func Architectures() []string { return slices.Sorted(maps.Keys(families)) }

// ErrArchitecture says that a checkpoint's model_type is not known.
var ErrArchitecture = errors.New("architecture not supported")

// ReadSpec reads what a checkpoint's config.json (and the end tokens of generation_config.json, if there is one) says.
// Every key must be known or listed as harmless: an unknown one that may change the maths is refused by name.
func ReadSpec(checkpoint *weights.Checkpoint) (*Spec, error) {
	spec, err := parseSpec(checkpoint.Config())
	if err != nil {
		return nil, err
	}
	for _, names := range spec.published {
		if !checkpoint.HasModule(spec.Names.Embed) && checkpoint.HasModule(names.Embed) {
			spec.Names = names
		}
	}
	spec.findStacks(checkpoint)
	if err := spec.addGenerationEOS(checkpoint); err != nil {
		return nil, err
	}
	return spec, nil
}

// parseSpec reads config.json.
func parseSpec(text []byte) (*Spec, error) {
	c, err := newConfig("config.json", text)
	if err != nil {
		return nil, err
	}
	family, ok := families[c.architecture]
	if !ok {
		return nil, fmt.Errorf("model: config.json: model_type %q: %w; supported: %s", c.architecture, ErrArchitecture, strings.Join(Architectures(), ", "))
	}
	spec := family(c)
	spec.Architecture = c.architecture
	spec.check(c)
	spec.Ignored, err = c.finish()
	if err != nil {
		return nil, err
	}
	return &spec, nil
}

// common reads the keys that all families share.
func (c *config) common() Spec {
	s := Spec{
		Vocab:    c.integer("vocab_size", required, 1, 1<<22),
		Hidden:   c.integer("hidden_size", required, 1, 1<<16),
		Layers:   c.integer("num_hidden_layers", required, 1, 1024),
		Drafting: c.integer("num_nextn_predict_layers", 0, 0, 1024),
		Context:  c.integer("max_position_embeddings", required, 1, 1<<24),
		Tied:     c.boolean("tie_word_embeddings", false),
		EOS:      c.tokens("eos_token_id"),
		Names:    standardNames,

		EmbedScale: 1, ResidualScale: 1, LogitDivisor: 1,
	}
	if act := c.text("hidden_act", "silu"); act != "silu" {
		c.refuse("hidden_act", "%q is not supported; silu is", act)
	}
	return s
}

// heads reads head counts; the head width falls back to hidden/heads.
func (c *config) heads(hidden int) Attention {
	a := Attention{Heads: c.integer("num_attention_heads", required, 1, 4096)}
	a.KVHeads = c.integer("num_key_value_heads", max(a.Heads, 1), 1, 4096)
	a.HeadDim = c.integer("head_dim", 0, 0, 4096)
	if a.HeadDim == 0 && a.Heads > 0 {
		if hidden%a.Heads != 0 {
			c.refuse("num_attention_heads", "%d does not divide hidden_size %d, and head_dim is missing", a.Heads, hidden)
		}
		a.HeadDim = hidden / a.Heads
	}
	return a
}

// check refuses combinations that no checkpoint can have. It says nothing where a field was refused already: what stands in
// its place is no value of the file's.
func (s *Spec) check(c *config) {
	if len(c.problems) > 0 {
		return
	}
	a, m := s.Attention, s.MoE
	if a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads != 0 {
		c.refuse("num_key_value_heads", "%d does not divide num_attention_heads %d", a.KVHeads, a.Heads)
	}
	if a.HeadDim%8 != 0 {
		c.refuse("head_dim", "%d is not a multiple of 8", a.HeadDim)
	}
	if m.TopK > m.Experts {
		c.refuse("num_experts_per_tok", "%d of %d experts", m.TopK, m.Experts)
	}
	if len(s.MoELayers()) == 0 && len(s.Dense) > 0 {
		c.refuse("num_hidden_layers", "none of the %d layers has experts", s.Layers)
	}
	for _, id := range s.EOS {
		if int(id) >= s.Vocab {
			c.refuse("eos_token_id", "%d is outside the vocabulary of %d", id, s.Vocab)
		}
	}
}

// noFurtherLayers refuses a checkpoint with more layers than config.json names: leaving them out would give a model that
// answers, and answers wrongly. Layers for drafting (num_nextn_predict_layers) lie behind the last one and are no error.
func (s *Spec) noFurtherLayers(checkpoint *weights.Checkpoint) error {
	name := fmt.Sprintf(s.Names.AttentionNorm, s.Layers+s.Drafting)
	if _, ok := checkpoint.Tensor(name); !ok {
		return nil
	}
	return fmt.Errorf("model: config.json: num_hidden_layers: %d, but the checkpoint has %s too; correct the number", s.Layers, name)
}

// addGenerationEOS adds the end tokens of generation_config.json, which often lists more than config.json.
func (s *Spec) addGenerationEOS(checkpoint *weights.Checkpoint) error {
	const name = "generation_config.json"
	text, err := checkpoint.File(name, weights.MaxConfig)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := newConfig(name, text)
	if err != nil {
		return err
	}
	for _, id := range c.tokens("eos_token_id") {
		if int(id) < s.Vocab {
			s.EOS = append(s.EOS, id)
		}
	}
	slices.Sort(s.EOS)
	s.EOS = slices.Compact(s.EOS)
	return errors.Join(c.problems...)
}
