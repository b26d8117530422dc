package atlas

import (
	"context"
	"os"
	"testing"
)

// The criteria of the method: what was planted is found, nothing else is, and intervals mean what they say. The long
// form has the bundled model's number of experts and the shipped numbers of draws.
func TestPlantedTruthIsFoundAndNothingElse(t *testing.T) {
	layers, o := 6, Options{Permutations: 600, Draws: 600, Shuffles: 100}
	if os.Getenv("COVEY_LONG") != "" {
		layers, o = 29, Options{}
	}
	s, err := RunSelftest(context.Background(), layers, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", *s)
	if s.RecallLift4 < 0.9 {
		t.Errorf("recall at lift 4 is %.3f, at least 0.9 is required", s.RecallLift4)
	}
	if s.FalseLabelRate > 0.05 {
		t.Errorf("false label rate is %.3f, at most 0.05 is allowed", s.FalseLabelRate)
	}
	if s.Coverage < 0.92 || s.Coverage > 0.98 {
		t.Errorf("95 %% intervals contain the truth in %.3f of cases, 0.92 to 0.98 is required", s.Coverage)
	}
	if s.Confounds == 0 || s.ConfoundRecovery < 0.8 {
		t.Errorf("%.3f of %d labelled confounds were marked lexical, at least 0.8 is required", s.ConfoundRecovery, s.Confounds)
	}
	if s.LexicalMistakes > 0.1 {
		t.Errorf("%.3f of the specialists were marked lexical, at most 0.1 is allowed", s.LexicalMistakes)
	}
	if !s.Pass {
		t.Error("Pass does not say so")
	}
}
