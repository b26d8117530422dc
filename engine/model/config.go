package model

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"covey/engine/canon"
	"covey/engine/jsonfault"
)

// config reads a JSON object key by key, collects every problem instead of stopping at the first, and knows at the end
// which keys nobody asked for.
type config struct {
	file         string
	prefix       string // "rope_parameters." inside that object
	architecture string
	values       map[string]jsontext.Value
	used         map[string]bool
	problems     []error
}

// required as a default makes a missing key a problem.
const required = math.MinInt

// harmless are keys of any architecture that do not change the maths of a forward pass.
var harmless = strings.Fields(`
	_name_or_path architectures auto_map bos_token_id pad_token_id sep_token_id decoder_start_token_id model_type
	transformers_version torch_dtype dtype use_cache initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop
	router_aux_loss_coef router_z_loss_coef router_jitter_noise output_router_logits pretraining_tp
	quantization_config compression_config id2label label2id return_dict output_attentions output_hidden_states use_bfloat16
	pruned_heads tf_legacy_loss torchscript is_decoder is_encoder_decoder cross_attention_hidden_size add_cross_attention
	tie_encoder_decoder max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature
	top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
	num_return_sequences chunk_size_feed_forward output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
	remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens finetuning_task tokenizer_class
	prefix problem_type task_specific_params unsloth_version unsloth_fixed _attn_implementation attn_implementation`)

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func newConfig(file string, text []byte) (*config, error) {
	c := &config{file: file, used: map[string]bool{}}
	if err := json.Unmarshal(text, &c.values); err != nil {
		return nil, fmt.Errorf("model: %s: %w; download it again", file, jsonfault.Plain(err))
	}
	c.architecture = c.text("model_type", "")
	return c, errors.Join(c.problems...)
}

// refuse records a problem with a key.
func (c *config) refuse(key, format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf("model: %s: %s%s: %s", c.file, c.prefix, key, fmt.Sprintf(format, args...)))
}

// value returns a key's JSON and marks it as understood; false when it is absent or null.
func (c *config) value(key string) (jsontext.Value, bool) {
	c.used[key] = true
	v, ok := c.values[key]
	return v, ok && v.Kind() != 'n'
}

// integer reads a whole number in [low, high].
func (c *config) integer(key string, absent, low, high int) int {
	v, ok := c.value(key)
	if !ok {
		if absent == required {
			c.refuse(key, "missing")
			return low
		}
		return absent
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < low || n > high {
		c.refuse(key, "%s, want a whole number from %d to %d", v, low, high)
		return low
	}
	return n
}

// number reads a finite number.
func (c *config) number(key string, absent float64) float64 {
	v, ok := c.value(key)
	if !ok {
		return absent
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if v.Kind() != '0' || err != nil || math.IsInf(x, 0) {
		c.refuse(key, "%s, want a number", v)
		return absent
	}
	return x
}

// positive reads a number above zero.
func (c *config) positive(key string, absent float64) float64 {
	x := c.number(key, absent)
	if !(x > 0) {
		c.refuse(key, "%v, want a number above zero", x)
		return 1
	}
	return x
}

func (c *config) boolean(key string, absent bool) bool {
	v, ok := c.value(key)
	switch {
	case !ok:
		return absent
	case v.Kind() != 't' && v.Kind() != 'f':
		c.refuse(key, "%s, want true or false", v)
		return absent
	}
	return v.Kind() == 't'
}

func (c *config) text(key, absent string) string {
	v, ok := c.value(key)
	if !ok {
		return absent
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		c.refuse(key, "%s, want a string", v)
		return absent
	}
	return s
}

// only refuses a key that is there with another text than the one that the family means.
func (c *config) only(key, want string) {
	if v := c.text(key, want); v != want {
		c.refuse(key, "%q is not supported; %q is", v, want)
	}
}

// integers reads a list of whole numbers.
func (c *config) integers(key string) []int {
	v, ok := c.value(key)
	if !ok {
		return nil
	}
	var list []int
	if err := json.Unmarshal(v, &list); err != nil {
		c.refuse(key, "%s, want a list of whole numbers", v)
	}
	return list
}

// list reads a list of one text for each of n layers, behind which layers that only draft may stand; nil when the key is
// absent.
func (c *config) list(key string, n int) []string {
	v, ok := c.value(key)
	if !ok {
		return nil
	}
	var list []string
	if err := json.Unmarshal(v, &list); err != nil || len(list) != n && len(list) != n+c.integer("num_nextn_predict_layers", 0, 0, 1024) {
		c.refuse(key, "%s, want a list of %d texts", abbreviate(string(v)), n)
		return nil
	}
	return list[:n]
}

// tokens reads a token id or a list of them, ascending.
func (c *config) tokens(key string) []int32 {
	v, ok := c.value(key)
	if !ok {
		return nil
	}
	if v.Kind() != '[' {
		v = jsontext.Value("[" + string(v) + "]")
	}
	var list []int32
	if err := json.Unmarshal(v, &list); err != nil || slices.ContainsFunc(list, func(id int32) bool { return id < 0 }) {
		c.refuse(key, "%s, want a token id or a list of them", v)
		return nil
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// object reads a nested object; nil when it is absent or empty.
func (c *config) object(key string) *config {
	v, ok := c.value(key)
	if !ok {
		return nil
	}
	inner := &config{file: c.file, prefix: c.prefix + key + ".", used: map[string]bool{}}
	if err := json.Unmarshal(v, &inner.values); err != nil {
		c.refuse(key, "%s, want an object", v)
		return nil
	}
	if len(inner.values) == 0 {
		return nil
	}
	return inner
}

// without says that keys are known not to matter to this family.
func (c *config) without(keys ...string) {
	for _, key := range keys {
		c.used[key] = true
	}
}

// finish returns the harmless keys that were present, and the problems: a key that is neither used nor harmless is one
// unless its value switches its feature off.
func (c *config) finish() ([]string, error) {
	var ignored []string
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		switch v := string(c.values[key]); {
		case c.used[key]:
		case slices.Contains(harmless, key), v == "null", v == "false", v == "{}", v == "[]", v == `""`:
			ignored = append(ignored, c.prefix+key)
		default:
			c.refuse(key, "%s is not known to %s and may change the maths; remove the key if it does not", abbreviate(v), c.architecture)
		}
	}
	return ignored, errors.Join(c.problems...)
}

// abbreviate keeps an error line readable.
func abbreviate(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// ropeDefaults are a family's values for absent keys.
type ropeDefaults struct {
	theta   float64
	partial float64 // share of a head that is rotated
	fixed   bool    // the family always rotates whole heads: another share is refused
}

// rope reads the rotary parameters, from rope_parameters or in the older spelling from rope_theta, rope_scaling and
// partial_rotary_factor, for heads of width dim.
func (c *config) rope(dim int, absent ropeDefaults) canon.RopeSpec {
	theta := c.positive("rope_theta", absent.theta)
	partial := c.positive("partial_rotary_factor", absent.partial)
	top := c.number("original_max_position_embeddings", 0)
	spec := canon.RopeSpec{Kind: canon.RopeDefault}
	inner := c.ropeParameters()
	if inner != nil {
		inner.architecture = c.architecture
		theta = inner.positive("rope_theta", theta)
		partial = inner.positive("partial_rotary_factor", partial)
		kind := inner.text("rope_type", inner.text("type", "default"))
		original := float64(c.integer("max_position_embeddings", 0, 0, math.MaxInt32))
		switch kind {
		case "default":
			inner.without("factor")
		case "linear":
			spec.Kind = canon.RopeLinear
		case "dynamic":
			// Frequencies change only beyond max_position_embeddings, and no sequence may be longer than that.
			// With alpha theta is larger from the start.
			if spec.Alpha = inner.number("alpha", 0); spec.Alpha < 0 {
				inner.refuse("alpha", "%v is negative", spec.Alpha)
			}
			inner.without("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
		case "llama3":
			spec.Kind = canon.RopeLlama3
			spec.LowFreq, spec.HighFreq = inner.positive("low_freq_factor", 1), inner.positive("high_freq_factor", 4)
		case "yarn":
			spec.Kind = canon.RopeYarn
			spec.BetaFast, spec.BetaSlow = inner.positive("beta_fast", 32), inner.positive("beta_slow", 1)
			spec.Truncate = inner.boolean("truncate", true)
			spec.Attention = inner.number("attention_factor", 0)
			spec.MScale, spec.MScaleAll = inner.number("mscale", 0), inner.number("mscale_all_dim", 0)
		case "longrope", "su":
			spec.Kind = canon.RopeLong
			spec.Attention = inner.number("short_mscale", inner.number("attention_factor", 0))
			spec.LongAttention = inner.number("long_mscale", inner.number("attention_factor", 0))
			spec.Short, spec.Long = inner.divisors("short_factor"), inner.divisors("long_factor")
		default:
			inner.refuse("rope_type", "%q is not supported; default, linear, dynamic, llama3, yarn and longrope are", kind)
		}
		if spec.Kind != canon.RopeDefault && spec.Kind != canon.RopeLong {
			if spec.Factor = inner.number("factor", math.NaN()); !(spec.Factor > 0) {
				inner.refuse("factor", "missing or not above zero, but rope_type %q needs it", kind)
			}
		}
		if spec.Kind >= canon.RopeLlama3 {
			spec.Original = inner.positive("original_max_position_embeddings", original)
			if top > 0 {
				spec.Original = top
			}
		}
		if spec.Kind == canon.RopeLong {
			spec.Factor = inner.positive("factor", original/spec.Original)
		}
		if _, err := inner.finish(); err != nil {
			c.problems = append(c.problems, inner.problems...)
		}
	}
	if absent.fixed && partial != 1 {
		c.refuse("partial_rotary_factor", "%v, but %s rotates whole heads", partial, c.architecture)
	}
	if partial > 1 {
		c.refuse("partial_rotary_factor", "%v is more than 1", partial)
		partial = 1
	}
	spec.Theta, spec.Rot = theta, int(float64(dim)*partial)
	if spec.Rot < 2 || spec.Rot%2 != 0 {
		c.refuse("partial_rotary_factor", "%v of a head of %d rotates %d channels, want a positive even number", partial, dim, spec.Rot)
	}
	for _, divisors := range []struct {
		key  string
		list []float64
	}{{"short_factor", spec.Short}, {"long_factor", spec.Long}} {
		if divisors.list != nil && len(divisors.list) != spec.Rot/2 {
			inner.refuse(divisors.key, "%d factors, but a head rotates %d pairs", len(divisors.list), spec.Rot/2)
			c.problems = append(c.problems, inner.problems[len(inner.problems)-1])
		}
	}
	return spec
}

// ropeParameters is the object of rotary parameters in its newer or older spelling; nil if there is none. Newer files may give
// one for each type of layer, which must be equal here, and keep the older spelling beside it, which must say the same.
func (c *config) ropeParameters() *config {
	inner, old := c.object("rope_parameters"), c.object("rope_scaling")
	if inner == nil {
		return old
	}
	if v, ok := c.value("rope_scaling"); ok && old != nil && !equalJSON(v, c.values["rope_parameters"]) {
		c.refuse("rope_scaling", "given beside rope_parameters, and differs from it; keep one of them")
	}
	layers := slices.Sorted(maps.Keys(inner.values))
	if !slices.ContainsFunc(layers, func(key string) bool { return !strings.HasSuffix(key, "_attention") }) {
		first := inner.object(layers[0])
		for _, key := range layers[1:] {
			if !equalJSON(inner.values[key], inner.values[layers[0]]) {
				c.refuse("rope_parameters", "%s and %s differ, which is not supported", layers[0], key)
			}
		}
		c.problems = append(c.problems, inner.problems...)
		return first
	}
	return inner
}

// equalJSON says whether two values are the same but for white space and the order of names.
func equalJSON(a, b jsontext.Value) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}

// divisors reads a list of numbers above zero.
func (c *config) divisors(key string) []float64 {
	v, ok := c.value(key)
	if !ok {
		c.refuse(key, "missing")
		return nil
	}
	var list []float64
	if err := json.Unmarshal(v, &list); err != nil || slices.ContainsFunc(list, func(x float64) bool { return !(x > 0) }) {
		c.refuse(key, "%s, want a list of numbers above zero", abbreviate(string(v)))
		return nil
	}
	return list
}
