package route_test

import (
	"slices"
	"strings"
	"testing"

	"covey/engine/route"
)

func TestCountsAddSelectionsAndMassPerLayerAndExpert(t *testing.T) {
	c := route.NewCounts(small)
	for _, e := range turn() {
		if err := c.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if c.Rows != 3 {
		t.Errorf("%d rows, want 3", c.Rows)
	}
	// Layer 1 chose {0,5}, {5,0}, {2,3}; layer 2 {1,2}, {2,1}, {2,3}; layer 5 {3,4}, {4,3}, {2,3}.
	if want := []uint64{2, 0, 1, 1, 0, 2 /**/, 0, 2, 3, 1, 0, 0 /**/, 0, 0, 1, 3, 2, 0}; !slices.Equal(c.Selections, want) {
		t.Errorf("selections %v, want %v", c.Selections, want)
	}
	if got, want := c.Mass[c.Index(0, 0)], 1.125; got != want {
		t.Errorf("mass of expert 0 in the first layer %v, want %v", got, want)
	}
	if got, want := c.Mass[c.Index(2, 3)], 0.25+0.25+0.3125; got != want {
		t.Errorf("mass of expert 3 in the last layer %v, want %v", got, want)
	}
}

func TestCountsRefuseAnEventOfAnotherShape(t *testing.T) {
	c := route.NewCounts(small)
	e := turn()[0]
	e.IDs[11] = 6
	if err := c.Add(e); err == nil || !strings.Contains(err.Error(), "slot 11: expert 6 of 6") {
		t.Errorf("got %v", err)
	}
	e.IDs = e.IDs[:4]
	if err := c.Add(e); err == nil || !strings.Contains(err.Error(), "4 ids") {
		t.Errorf("got %v", err)
	}
	if c.Rows != 0 || slices.Max(c.Selections) != 0 {
		t.Error("a refused event was counted")
	}
}

func TestRowViewsOneRowOfAnEvent(t *testing.T) {
	ids, weights := turn()[0].Row(small, 1)
	if !slices.Equal(ids, []uint16{5, 0, 2, 1, 4, 3}) || !slices.Equal(weights, []float32{1, 0.125, 0, 0, 0.5, 0.25}) {
		t.Errorf("row 1: %v %v", ids, weights)
	}
}
