package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 3, 7, 9, 5, 2, 0, time.UTC)

// render parses and renders with default limits.
func render(source string, variables map[string]Value) (Text, error) {
	t, err := Parse(source)
	if err != nil {
		return Text{}, err
	}
	return t.Render(context.Background(), variables, now, Limits{})
}

// languageCase is one snippet with what Python's Jinja makes of it (testdata/golden.py of package chat).
type languageCase struct {
	Template string
	Want     *string
	Raised   *string
	Error    string
}

func language(tb testing.TB) (map[string]Value, []languageCase) {
	tb.Helper()
	data, err := os.ReadFile("testdata/language.json")
	if err != nil {
		tb.Fatal(err)
	}
	var file struct {
		Variables json.RawMessage
		Cases     []languageCase
	}
	if err := json.Unmarshal(data, &file); err != nil {
		tb.Fatal(err)
	}
	v, err := FromJSON(file.Variables)
	if err != nil {
		tb.Fatal(err)
	}
	variables := make(map[string]Value)
	for _, e := range v.(*Dict).entries {
		variables[e.key.(Text).s] = e.value
	}
	return variables, file.Cases
}

func TestTheLanguageMeansWhatPythonsJinjaMeans(t *testing.T) {
	variables, cases := language(t)
	for _, c := range cases {
		got, err := render(c.Template, variables)
		var raised *Raised
		switch {
		case c.Want != nil && err != nil:
			t.Errorf("%s\n error %v\n want  %q", c.Template, err, *c.Want)
		case c.Want != nil && got.String() != *c.Want:
			t.Errorf("%s\n got  %q\n want %q", c.Template, got, *c.Want)
		case c.Raised != nil && (!errors.As(err, &raised) || raised.Message != *c.Raised):
			t.Errorf("%s\n error %v, want the template to raise %q", c.Template, err, *c.Raised)
		case c.Error != "" && err == nil:
			t.Errorf("%s\n got %q, want an error (%s)", c.Template, got, c.Error)
		}
		if i := strings.Index(got.String(), "�"); i >= 0 {
			t.Errorf("%s: half a character at %d", c.Template, i)
		}
	}
}
