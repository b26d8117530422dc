package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"covey/engine/jsonfault"
	"covey/engine/sample"
	"covey/engine/weights"
)

// plainDefaults are used where a checkpoint suggests nothing: mild sampling that suits chat models.
var plainDefaults = sample.Params{Temperature: 0.7, TopP: 0.95}

// readDefaults reads the suggestions of generation_config.json. do_sample = false means greedy. A parameter that the
// file does not name is off; other keys of the file are about other engines and are ignored.
func readDefaults(checkpoint *weights.Checkpoint) (sample.Params, error) {
	const name, limit = "generation_config.json", 1 << 20
	text, err := checkpoint.File(name, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return plainDefaults, nil
	}
	if err != nil {
		return sample.Params{}, err
	}
	return parseDefaults(text)
}

func parseDefaults(text []byte) (sample.Params, error) {
	const name = "generation_config.json"
	var file struct {
		DoSample          *bool    `json:"do_sample"`
		Temperature       *float32 `json:"temperature"`
		TopK              int      `json:"top_k"`
		TopP              float32  `json:"top_p"`
		MinP              float32  `json:"min_p"`
		RepetitionPenalty float32  `json:"repetition_penalty"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return sample.Params{}, fmt.Errorf("%s: %w; mend it, or remove it for Covey's own defaults", name, jsonfault.Plain(err))
	}
	p := sample.Params{TopK: file.TopK, TopP: file.TopP, MinP: file.MinP, RepetitionPenalty: file.RepetitionPenalty}
	switch {
	case file.DoSample != nil && !*file.DoSample: // greedy
	case file.Temperature != nil:
		p.Temperature = *file.Temperature
	case file.DoSample != nil:
		p.Temperature = 1
	default:
		p.Temperature = plainDefaults.Temperature
		if p.TopP == 0 {
			p.TopP = plainDefaults.TopP
		}
	}
	if err := p.Validate(0); err != nil {
		return sample.Params{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
