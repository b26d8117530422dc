package weights

// compressed-tensors. Format pack-quantized: a module M has M.weight_packed I32 [rows, ceil(cols/n)] with n = 8 values of
// 4 bits or 4 of 8 bits in a word (value i of a word in bits 4i.. or 8i.., stored as unsigned with an offset of 8 or
// 128), M.weight_scale [rows, groups] and M.weight_shape I64 [2] = [rows, cols]. Asymmetric groups have M.weight_zero_point
// I32 [ceil(rows/n), groups], packed along the rows. Formats float-quantized, int-quantized and naive-quantized: M.weight
// F8_E4M3 or I8 [rows, cols] with M.weight_scale, [rows, 1] or [1], or for F8 one a block. Which modules are packed is decided
// by their tensors; config.json's groups say how many bits and which grouping, by exact name, by "re:" pattern, or by class
// ("Linear"), in that order.

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"covey/engine/jsonfault"
)

// scheme is the quantization_config of a checkpoint.
type scheme struct {
	groups  []group
	ignore  matcher
	columns *columns   // GPTQ or AutoAWQ; then groups is empty
	fp8     *fp8Blocks // FP8 in blocks; then groups is empty
}

// group is one entry of config_groups.
type group struct {
	name    string
	targets matcher
	bits    int
	inputs  int        // inputs that share a scale; 0 = all inputs of a row, -1 = the whole matrix
	zeros   bool       // groups have zero points
	plain   bool       // values lie one by one, as F8_E4M3 or I8
	blocks  *fp8Blocks // of F8_E4M3
}

// matcher tells whether a module is meant by a list of targets.
type matcher struct {
	names    []string
	patterns []*regexp.Regexp
}

// Ranks of a match, best first.
const (
	matchNone = iota
	matchClass
	matchPattern
	matchName
)

func (m matcher) rank(module string) int {
	switch {
	case slices.Contains(m.names, module):
		return matchName
	case slices.ContainsFunc(m.patterns, func(p *regexp.Regexp) bool { return p.MatchString(module) }):
		return matchPattern
	case slices.Contains(m.names, "Linear") && !strings.HasSuffix(module, "embed_tokens"):
		return matchClass
	}
	return matchNone
}

// newMatcher compiles targets; "re:" patterns match from the start of a name, as the format's own reader matches them.
func newMatcher(targets []string) (matcher, string) {
	var m matcher
	for _, target := range targets {
		pattern, isPattern := strings.CutPrefix(target, "re:")
		if !isPattern {
			m.names = append(m.names, target)
			continue
		}
		compiled, err := regexp.Compile("^(?:" + pattern + ")")
		if err != nil {
			return m, fmt.Sprintf("pattern %q: %v", target, err)
		}
		m.patterns = append(m.patterns, compiled)
	}
	return m, ""
}

// method finds the group of a module; nil means that no group claims it.
func (s *scheme) method(module string) *group {
	var best *group
	rank := matchNone
	for i := range s.groups {
		if r := s.groups[i].targets.rank(module); r > rank {
			best, rank = &s.groups[i], r
		}
	}
	return best
}

// present says whether a JSON value is more than an absent feature: not missing, null, false, {} or [].
func present(raw []byte) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "false", "{}", "[]":
		return false
	}
	return true
}

// rawValue keeps a JSON value undecoded.
type rawValue []byte

func (v *rawValue) UnmarshalJSON(data []byte) error { *v = slices.Clone(data); return nil }

// plainFormats says of the formats of compressed-tensors that are read whether values lie one by one. How faster kernels would
// quantise activations does not matter to those: products take them as floats.
var plainFormats = map[string]bool{"pack-quantized": false, "float-quantized": true, "int-quantized": true, "naive-quantized": true}

// readScheme decodes the quantisation part of config.json. nil means that there is none.
func readScheme(config []byte) (*scheme, error) {
	refuse := func(remedy, format string, args ...any) error {
		return &FormatError{File: "config.json", Offset: -1, Problem: "quantization_config: " + fmt.Sprintf(format, args...), Remedy: remedy}
	}
	const only = "use a checkpoint in one of the forms that docs/forms.md lists"
	var outer struct {
		Quantization rawValue `json:"quantization_config"`
		Compression  rawValue `json:"compression_config"`
	}
	if err := json.Unmarshal(config, &outer); err != nil {
		return nil, &FormatError{File: "config.json", Offset: -1, Problem: jsonfault.Plain(err).Error(), Remedy: again}
	}
	raw := outer.Quantization
	if !present(raw) {
		raw = outer.Compression
	}
	if !present(raw) {
		return nil, nil
	}
	type weightsConfig struct {
		Bits      int      `json:"num_bits"`
		Type      string   `json:"type"`
		Symmetric *bool    `json:"symmetric"`
		Strategy  string   `json:"strategy"`
		GroupSize *int     `json:"group_size"`
		Dynamic   rawValue `json:"dynamic"`
		ActOrder  rawValue `json:"actorder"`
		Blocks    rawValue `json:"block_structure"`
	}
	var q struct {
		Method string `json:"quant_method"`
		Format string `json:"format"`
		Groups map[string]struct {
			Targets []string       `json:"targets"`
			Weights *weightsConfig `json:"weights"`
			Inputs  rawValue       `json:"input_activations"`
			Outputs rawValue       `json:"output_activations"`
			Format  *string        `json:"format"`
		} `json:"config_groups"`
		Ignore    []string `json:"ignore"`
		KV        rawValue `json:"kv_cache_scheme"`
		Sparsity  rawValue `json:"sparsity_config"`
		Transform rawValue `json:"transform_config"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, refuse(again, "%v", jsonfault.Plain(err))
	}
	switch q.Method {
	case "compressed-tensors":
	case "mxfp4":
		return nil, nil // its tensors say it all, see Expert
	case "gptq", "awq":
		c, err := readColumns(q.Method, raw)
		return &scheme{columns: c}, err
	case "fp8":
		f, err := readFP8(raw)
		return &scheme{fp8: f}, err
	case "fbgemm_fp8": // one scale a row
		return &scheme{fp8: &fp8Blocks{height: 1}}, nil
	default:
		return nil, refuse(only, "quant_method %q is not supported", q.Method)
	}
	if _, ok := plainFormats[q.Format]; !ok {
		return nil, refuse(only, "format %q is not supported", q.Format)
	}
	for name, value := range map[string]rawValue{"kv_cache_scheme": q.KV, "sparsity_config": q.Sparsity, "transform_config": q.Transform} {
		if present(value) && !bytes.Contains(value, []byte(`"dense"`)) {
			return nil, refuse(only, "%s is not supported", name)
		}
	}
	s := &scheme{}
	var problem string
	if s.ignore, problem = newMatcher(q.Ignore); problem != "" {
		return nil, refuse(only, "ignore: %s", problem)
	}
	for name, g := range q.Groups {
		where := "config_groups." + name
		w, format := g.Weights, q.Format
		if g.Format != nil {
			format = *g.Format
		}
		plain, known := plainFormats[format]
		if !known {
			return nil, refuse(only, "%s: format %q is not supported", where, format)
		}
		if w == nil {
			return nil, refuse(only, "%s has no weights", where)
		}
		float := w.Type == "float"
		switch {
		case !plain && (present(g.Inputs) || present(g.Outputs)):
			return nil, refuse(only, "%s: quantised activations are not supported", where)
		case float && (!plain || w.Bits != 8) || !float && w.Type != "int" && w.Type != "" || w.Bits != 8 && (plain || w.Bits != 4):
			return nil, refuse(only, "%s: %d-bit %s weights are not supported", where, w.Bits, w.Type)
		case present(w.ActOrder) && string(w.ActOrder) != `"weight"` && string(w.ActOrder) != `"static"`:
			return nil, refuse(only, "%s: actorder %s is not supported", where, w.ActOrder)
		case present(w.Dynamic) || present(w.Blocks) && w.Strategy != "block":
			return nil, refuse(only, "%s: dynamic or block-wise weights are not supported", where)
		}
		out := group{name: where, bits: w.Bits, zeros: w.Symmetric != nil && !*w.Symmetric, plain: plain}
		switch {
		case w.Strategy == "group" && !plain:
			if w.GroupSize == nil || !slices.Contains([]int{32, 64, 128}, *w.GroupSize) {
				return nil, refuse(only, "%s: group_size must be 32, 64 or 128", where)
			}
			out.inputs = *w.GroupSize
		case w.Strategy == "channel":
			out.blocks = &fp8Blocks{height: 1}
		case w.Strategy == "tensor":
			out.inputs, out.blocks = -1, &fp8Blocks{}
		case w.Strategy == "block" && float:
			var size []int
			if err := json.Unmarshal(w.Blocks, &size); err != nil || len(size) != 2 || min(size[0], size[1]) < 1 || max(size[0], size[1]) > 1<<16 {
				return nil, refuse(only, "%s: block_structure %s, want two positive numbers", where, w.Blocks)
			}
			out.blocks = &fp8Blocks{height: size[0], width: size[1]}
		default:
			return nil, refuse(only, "%s: strategy %q is not supported", where, w.Strategy)
		}
		if !float {
			out.blocks = nil
		}
		if out.targets, problem = newMatcher(g.Targets); problem != "" {
			return nil, refuse(only, "%s: targets: %s", where, problem)
		}
		s.groups = append(s.groups, out)
	}
	// Map order is random; equal ranks must not depend on it.
	slices.SortFunc(s.groups, func(a, b group) int { return strings.Compare(a.name, b.name) })
	return s, nil
}
