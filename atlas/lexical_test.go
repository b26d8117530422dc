package atlas

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
)

// testdata/mantel.json holds statsmodels' Mantel-Haenszel estimate for the same texts (testdata/mantel.py).
func TestTheRatioWithinTokensIsMantelAndHaenszels(t *testing.T) {
	data, err := os.ReadFile("testdata/mantel.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Topic          []int
		Tokens, Chosen [][]int
		Ratio, Crude   float64
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	info := engine.ModelInfo{Shape: route.Shape{Layers: []int{4}, Experts: 2, TopK: 1}}
	set := &probes.Set{Topics: []string{"one", "two"}}
	observed := map[string]*Observation{}
	for i, c := range want.Topic {
		p := probes.Probe{ID: strconv.Itoa(i), Topic: set.Topics[c], Cluster: strconv.Itoa(i)}
		ob := &Observation{}
		for j, token := range want.Tokens[i] {
			ob.Tokens = append(ob.Tokens, int32(token))
			ob.IDs = append(ob.IDs, uint16(1-want.Chosen[i][j])) // expert 0 when it was chosen
		}
		set.Probes = append(set.Probes, p)
		observed[p.ID] = ob
	}
	m := &measurement{info: info, set: set, open: newSample(set, set.Probes, info.Shape, observed, ""), atlas: &Atlas{Labels: []Label{{Layer: 4, ID: 0, Topic: 0}}}}
	scores, ratios := m.withinTokens(newTokenIndex(m.open))
	if math.Abs(ratios[0]-want.Ratio) > 1e-12 {
		t.Errorf("the ratio is %v, statsmodels gives %v", ratios[0], want.Ratio)
	}
	if want.Crude < 1.2*want.Ratio {
		t.Fatalf("without strata the ratio would be %v, within them %v: the texts show no difference", want.Crude, want.Ratio)
	}
	sum := 0.0
	for r := range scores.Rows {
		sum += scores.Row(r)[0]
	}
	if sum <= 0 {
		t.Errorf("scores sum to %v where the rate inside the topic is higher", sum)
	}
}
