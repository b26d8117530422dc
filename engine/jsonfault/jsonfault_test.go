package jsonfault

import (
	stdjson "encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

type document struct {
	Name   string `json:"name"`
	Layers []struct {
		Layer int  `json:"layer"`
		Lit   bool `json:"lit"`
	} `json:"layers"`
	Share map[string]float64 `json:"share"`
	Made  time.Time          `json:"made"`
	Raw   []byte             `json:"raw"`
	Pair  [2]int8            `json:"pair"`
}

func TestFaultsNameFieldWhatStandsThereAndWhatWasWanted(t *testing.T) {
	for _, c := range []struct {
		text, want string
		class      Class
	}{
		{`{"name": 5}`, "name: number, want a text (at byte 9)", Type},
		{`{"layers": [{"layer": 1}, {"layer": 1.5}]}`, "layers[1].layer: number 1.5, want a whole number (at byte 36)", Type},
		{`{"layers": [{"lit": "yes"}]}`, "layers[0].lit: string, want true or false (at byte 20)", Type},
		{`{"layers": {}}`, "layers: object, want a list (at byte 11)", Type},
		{`{"share": {"code": []}}`, "share.code: array, want a number (at byte 19)", Type},
		{`[]`, "array, want an object", Type},
		{`{"made": "yesterday"}`, "made: string, want a time such as 2006-01-02T15:04:05Z (at byte 9)", Type},
		{`{"raw": "*"}`, "raw: string, want a text in base64 (at byte 8)", Type},
		{`{"pair": [1]}`, "pair: array, want a list of 2 (at byte 11)", Type},
		{`{"pair": [1, 300]}`, "pair[1]: number 300, out of range (at byte 13)", Type},
		{`{"share": {"code": 1e400}}`, "share.code: number 1e400, out of range (at byte 19)", Type},
		{`{"nome": ""}`, "nome: no such field is known (at byte 1)", Unknown},
		{`{"name": "a", "name": "b"}`, "name: it stands twice (at byte 14)", Twice},
		{`{"name": "a`, "name: no valid JSON: unexpected EOF (at byte 11)", Syntax},
	} {
		var d document
		err := json.Unmarshal([]byte(c.text), &d, json.RejectUnknownMembers(true))
		f := Of(err)
		if f == nil || f.Class != c.class || f.Error() != c.want || !errors.Is(Plain(err), f.Err) {
			t.Errorf("%s: %v, want %q", c.text, f, c.want)
		}
	}
}

func TestDeepFieldsAreShownByTheirEnds(t *testing.T) {
	f := &Fault{Field: "first." + strings.Repeat("a.", 1<<14) + "last", Detail: "too deep"}
	if got, want := f.Error(), "first."+strings.Repeat("a.", 37)+"..."+strings.Repeat("a.", 38)+"last: too deep"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTheStandardLibrarysErrorsAreReadToo(t *testing.T) {
	for text, want := range map[string]string{
		`{"layers": [{"layer": "x"}]}`: "layers.layer: string, want a whole number (at byte 25)",
		`{"pair": [-129]}`:             "pair: number -129, out of range (at byte 14)",
		`{"name": "a`:                  "no valid JSON: unexpected end of JSON input (at byte 11)",
	} {
		var d document
		if err := Plain(stdjson.Unmarshal([]byte(text), &d)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestOtherErrorsStayAsTheyAre(t *testing.T) {
	other := errors.New("the disk is full")
	if Of(other) != nil || Of(nil) != nil || Plain(other) != other {
		t.Error("an error of something else was taken for a fault")
	}
}

func TestLongNamesAreCutBetweenCharacters(t *testing.T) {
	var d document
	err := Plain(json.Unmarshal([]byte(`{"`+strings.Repeat("é", 40)+`": 1}`), &d, json.RejectUnknownMembers(true)))
	if want := strings.Repeat("é", 25) + "...: no such field is known (at byte 1)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}
