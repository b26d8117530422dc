package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode"
)

// preTokenizerConfig is a pre-tokenizer as tokenizer.json spells it.
type preTokenizerConfig struct {
	Type             string               `json:"type"`
	PreTokenizers    []preTokenizerConfig `json:"pretokenizers"`
	Pattern          *patternConfig       `json:"pattern"`
	Behavior         json.RawMessage      `json:"behavior"`
	Invert           bool                 `json:"invert"`
	AddPrefixSpace   *bool                `json:"add_prefix_space"`
	UseRegex         *bool                `json:"use_regex"`
	IndividualDigits bool                 `json:"individual_digits"`
	Replacement      string               `json:"replacement"`
	PrependScheme    string               `json:"prepend_scheme"`
	Split            *bool                `json:"split"`
	Delimiter        string               `json:"delimiter"`
}

func (c *preTokenizerConfig) build(where string, depth int) ([]stage, error) {
	if c == nil {
		return nil, nil
	}
	switch c.Type {
	case "Sequence":
		var stages []stage
		for i := range c.PreTokenizers {
			s, err := c.PreTokenizers[i].build(fmt.Sprintf("%s.pretokenizers[%d]", where, i), depth+1)
			if err != nil {
				return nil, err
			}
			stages = append(stages, s...)
		}
		return stages, nil
	case "ByteLevel":
		s := byteStage{prefixSpace: c.AddPrefixSpace == nil || *c.AddPrefixSpace}
		if c.UseRegex == nil || *c.UseRegex {
			s.scan = scanGPT2
		}
		return []stage{s}, nil
	case "Split":
		return c.split(where)
	case "Digits":
		find := single(func(r rune) bool { return classes()[r]&number != 0 })
		if c.IndividualDigits {
			return []stage{scanStage{func(text string, i int) int { return atMost(text, i, number, 1) }}}, nil
		}
		return []stage{splitStage{find: find, behaviour: contiguous}}, nil
	case "Punctuation":
		b := isolated
		if len(c.Behavior) > 0 {
			var err error
			if b, err = parseBehaviour(c.Behavior, where); err != nil {
				return nil, err
			}
		}
		return []stage{splitStage{find: single(isPunctuation), behaviour: b}}, nil
	case "Whitespace":
		find, _, err := pattern(`\w+|[^\w\s]+`)
		return []stage{splitStage{find: find, behaviour: removed, invert: true}}, err
	case "WhitespaceSplit":
		return []stage{splitStage{find: single(unicode.IsSpace), behaviour: removed}}, nil
	case "CharDelimiterSplit":
		if c.Delimiter == "" {
			return nil, fmt.Errorf("%s: CharDelimiterSplit without a delimiter", where)
		}
		return []stage{splitStage{find: literal(c.Delimiter), behaviour: removed}}, nil
	case "Metaspace":
		s := metaspaceStage{replacement: c.Replacement, prepend: c.PrependScheme, cut: c.Split == nil || *c.Split}
		if s.replacement == "" {
			s.replacement = metaspace
		}
		if s.prepend == "" {
			s.prepend = "always"
			if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
				s.prepend = "never"
			}
		}
		if s.prepend != "always" && s.prepend != "first" && s.prepend != "never" {
			return nil, unsupported(where+".prepend_scheme", s.prepend)
		}
		return []stage{s}, nil
	}
	return nil, unsupported(where, c.Type)
}

func (c *preTokenizerConfig) split(where string) ([]stage, error) {
	b, err := parseBehaviour(c.Behavior, where)
	if err != nil {
		return nil, err
	}
	if s := c.Pattern.literal(); s != "" {
		return []stage{splitStage{find: literal(s), behaviour: b, invert: c.Invert}}, nil
	}
	if c.Pattern == nil || c.Pattern.Regex == nil {
		return nil, fmt.Errorf("%s: Split without a pattern", where)
	}
	find, scan, err := pattern(*c.Pattern.Regex)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if scan != nil && b == isolated {
		return []stage{scanStage{scan}}, nil
	}
	return []stage{splitStage{find: find, behaviour: b, invert: c.Invert}}, nil
}

// parseBehaviour reads a split behaviour, a JSON string.
func parseBehaviour(raw json.RawMessage, where string) (behaviour, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s.behavior: not a string", where)
	}
	switch b := behaviour(s); b {
	case removed, isolated, mergedWithPrevious, mergedWithNext, contiguous:
		return b, nil
	}
	return "", unsupported(where+".behavior", s)
}

func isPunctuation(r rune) bool {
	if r < 0x80 {
		return asciiClasses[r]&(punct|symbol) != 0
	}
	return unicode.IsPunct(r)
}

// template is what the post-processor adds around a single sequence.
type template struct{ before, after []int32 }

// maxTemplate is the most tokens that a post-processor puts around a text; those in use put one or two.
const maxTemplate = 64

func (t *template) check(where string) (*template, error) {
	if n := len(t.before) + len(t.after); n > maxTemplate {
		return nil, fmt.Errorf("%s: more than %d tokens around a text", where, maxTemplate)
	}
	return t, nil
}

// postProcessorConfig is a post-processor as tokenizer.json spells it.
type postProcessorConfig struct {
	Type          string                `json:"type"`
	Processors    []postProcessorConfig `json:"processors"`
	Single        []templatePiece       `json:"single"`
	SpecialTokens map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
	Cls markerConfig `json:"cls"`
	Sep markerConfig `json:"sep"`
}

// templatePiece is a special token or the sequence itself.
type templatePiece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

// markerConfig is a token with its id, written ["<s>", 1].
type markerConfig struct {
	token string
	id    int32
}

// UnmarshalJSON reads the pair.
func (m *markerConfig) UnmarshalJSON(data []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if err := json.Unmarshal(pair[0], &m.token); err != nil {
		return err
	}
	return json.Unmarshal(pair[1], &m.id)
}

func (c *postProcessorConfig) build(where string, t *Tokenizer) (*template, error) {
	if c == nil {
		return nil, nil
	}
	switch c.Type {
	case "ByteLevel": // moves offsets only
		return nil, nil
	case "Sequence":
		var whole *template
		for i := range c.Processors {
			inner, err := c.Processors[i].build(fmt.Sprintf("%s.processors[%d]", where, i), t)
			if err != nil {
				return nil, err
			}
			switch {
			case inner == nil:
			case whole == nil:
				whole = inner
			default:
				whole = &template{append(inner.before, whole.before...), append(whole.after, inner.after...)}
			}
			if whole != nil {
				if whole, err = whole.check(where); err != nil {
					return nil, err
				}
			}
		}
		return whole, nil
	case "BertProcessing", "RobertaProcessing":
		if !t.known(c.Cls.id) || !t.known(c.Sep.id) {
			return nil, fmt.Errorf("%s: ids %d and %d are not both tokens", where, c.Cls.id, c.Sep.id)
		}
		return &template{[]int32{c.Cls.id}, []int32{c.Sep.id}}, nil
	case "TemplateProcessing":
		return c.template(where, t)
	}
	return nil, unsupported(where, c.Type)
}

func (c *postProcessorConfig) template(where string, t *Tokenizer) (*template, error) {
	out, seen := &template{}, false
	for i, p := range c.Single {
		switch {
		case p.Sequence != nil && !seen && p.Sequence.ID == "A":
			seen = true
		case p.SpecialToken != nil:
			token, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("%s.single[%d]: special token %.40q is not defined", where, i, p.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if !t.known(id) {
					return nil, fmt.Errorf("%s.single[%d]: special token %.40q has id %d, which no token has", where, i, p.SpecialToken.ID, id)
				}
			}
			if seen {
				out.after = append(out.after, token.IDs...)
			} else {
				out.before = append(out.before, token.IDs...)
			}
			if _, err := out.check(where); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%s.single[%d]: neither a special token nor the one sequence A", where, i)
		}
	}
	if !seen {
		return nil, fmt.Errorf("%s.single: the sequence A is missing", where)
	}
	return out, nil
}
