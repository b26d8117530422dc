package daemon

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strconv"

	"covey/engine/sample"
	"covey/web"
)

// chatSettings are a conversation's departures from the model's defaults: name to decimal text. The names are those of
// settingTable; the store keeps them as a JSON object.
type chatSettings map[string]string

// defaultMaxTokens ends an answer when the conversation does not say when.
const defaultMaxTokens = 1024

// settingTable is every setting, in the order of the dialog.
var settingTable = []struct {
	name, label, help string
	low, high         float64
	whole             bool
	step              string
	get               func(sample.Params) float64
	set               func(*sample.Params, float64)
}{
	{"temperature", "Temperature", "0 always takes the likeliest token; higher values vary more.", 0, 2, false, "0.05",
		func(p sample.Params) float64 { return float64(p.Temperature) }, func(p *sample.Params, v float64) { p.Temperature = float32(v) }},
	{"top_p", "Top-p", "Chooses among the likeliest tokens that together reach this probability. 1 = all.", 0.01, 1, false, "0.01",
		func(p sample.Params) float64 { return orOne(p.TopP) }, func(p *sample.Params, v float64) { p.TopP = float32(v) }},
	{"top_k", "Top-k", "Chooses among this many likeliest tokens. 0 = all.", 0, 100000, true, "1",
		func(p sample.Params) float64 { return float64(p.TopK) }, func(p *sample.Params, v float64) { p.TopK = int(v) }},
	{"min_p", "Min-p", "Drops tokens less likely than this share of the likeliest. 0 = off.", 0, 0.99, false, "0.01",
		func(p sample.Params) float64 { return float64(p.MinP) }, func(p *sample.Params, v float64) { p.MinP = float32(v) }},
	{"repetition_penalty", "Repetition penalty", "Above 1 makes tokens that were seen less likely. 1 = off.", 0.1, 2, false, "0.01",
		func(p sample.Params) float64 { return orOne(p.RepetitionPenalty) }, func(p *sample.Params, v float64) { p.RepetitionPenalty = float32(v) }},
	{"frequency_penalty", "Frequency penalty", "Taken off once for each time the answer holds the token. 0 = off.", -2, 2, false, "0.05",
		func(p sample.Params) float64 { return float64(p.FrequencyPenalty) }, func(p *sample.Params, v float64) { p.FrequencyPenalty = float32(v) }},
	{"presence_penalty", "Presence penalty", "Taken off once if the answer holds the token. 0 = off.", -2, 2, false, "0.05",
		func(p sample.Params) float64 { return float64(p.PresencePenalty) }, func(p *sample.Params, v float64) { p.PresencePenalty = float32(v) }},
	{"max_tokens", "Longest answer", "Tokens after which an answer is cut.", 1, 1 << 20, true, "1", nil, nil},
	{"seed", "Seed", "The same seed, messages and settings give the same answer.", 0, 1 << 53, true, "1", nil, nil},
}

// chatDefaults are what new conversations start with.
type chatDefaults struct {
	System   string       `json:"system"`
	Settings chatSettings `json:"settings"`
}

// chatDefaultsKey is the store's name for them.
const chatDefaultsKey = "chat.defaults"

func (s *Server) chatDefaults(ctx context.Context) (chatDefaults, error) {
	d := chatDefaults{Settings: chatSettings{}}
	if _, err := s.store.Setting(ctx, chatDefaultsKey, &d); err != nil {
		return chatDefaults{}, stored(err, "the settings")
	}
	return d, nil
}

func orOne(v float32) float64 {
	if v == 0 {
		return 1
	}
	return float64(v)
}

// readSettings decodes what the store keeps; anything it does not know is ignored.
func readSettings(raw json.RawMessage) chatSettings {
	s := chatSettings{}
	if json.Unmarshal(raw, &s) != nil {
		return chatSettings{}
	}
	return s
}

// check refuses values outside the table's limits and returns the settings with empty ones dropped.
func (s chatSettings) check() (chatSettings, error) {
	out := chatSettings{}
	for name, value := range s {
		if value == "" {
			continue
		}
		known := false
		for _, row := range settingTable {
			if row.name != name {
				continue
			}
			known = true
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || !(v >= row.low && v <= row.high) || row.whole && v != float64(int64(v)) {
				return nil, problem(KindUsage, "invalid", "", nil, "%s must be a number from %s to %s", row.label, decimal(row.low), decimal(row.high))
			}
		}
		if !known {
			return nil, invalid("there is no setting %q", clip(name, 40))
		}
		out[name] = value
	}
	return out, nil
}

// sampling is the model's parameters with the conversation's departures, and the seed of this turn.
func (s chatSettings) sampling(defaults sample.Params) (sample.Params, uint64, error) {
	checked, err := s.check()
	if err != nil {
		return defaults, 0, err
	}
	p := defaults
	for _, row := range settingTable {
		if value, ok := checked[row.name]; ok && row.set != nil {
			v, _ := strconv.ParseFloat(value, 64) // check has parsed it
			row.set(&p, v)
		}
	}
	p.Seed = rand.Uint64() >> 11 // 53 bits: exact in every client that reads JSON numbers as doubles
	if value, ok := checked["seed"]; ok {
		v, _ := strconv.ParseFloat(value, 64)
		p.Seed = uint64(v)
	}
	return p, p.Seed, nil
}

func (s chatSettings) maxTokens() int {
	if n, err := strconv.Atoi(s["max_tokens"]); err == nil && n > 0 {
		return n
	}
	return defaultMaxTokens
}

// kept is the form in which a turn's parameters are stored: all of them, defaults included.
func (s chatSettings) kept(p sample.Params, seed uint64) map[string]string {
	out := map[string]string{"seed": strconv.FormatUint(seed, 10), "max_tokens": strconv.Itoa(s.maxTokens())}
	for _, row := range settingTable {
		if row.get != nil {
			out[row.name] = decimal(row.get(p))
		}
	}
	return out
}

// settingViews is the dialog's content.
func settingViews(s chatSettings, defaults sample.Params) []web.Setting {
	out := make([]web.Setting, 0, len(settingTable))
	for _, row := range settingTable {
		v := web.Setting{Name: row.name, Label: row.label, Help: row.help, Value: s[row.name], Min: decimal(row.low), Max: decimal(row.high), Step: row.step}
		switch {
		case row.get != nil:
			v.Default = decimal(row.get(defaults))
		case row.name == "max_tokens":
			v.Default = strconv.Itoa(defaultMaxTokens)
		}
		out = append(out, v)
	}
	return out
}

// decimal formats a number as short as a single-precision value allows.
func decimal(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10) // 1048576, not 1.048576e+06
	}
	return strconv.FormatFloat(v, 'g', -1, 32)
}
