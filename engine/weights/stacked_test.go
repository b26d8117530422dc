package weights

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

// Two experts with 4 outputs and 3 inputs: value 100*expert + 10*output + input, stored plainly and transposed.
func TestExpertsAreReadOutOfStacks(t *testing.T) {
	var plain, turned, bias []float32
	for e := range 2 {
		for i := range 4 {
			bias = append(bias, float32(100*e+i))
			for j := range 3 {
				plain = append(plain, float32(100*e+10*i+j))
			}
		}
		for j := range 3 {
			for i := range 4 {
				turned = append(turned, float32(100*e+10*i+j))
			}
		}
	}
	c := opened(t, `{"p.weight":{"dtype":"F32","shape":[2,4,3],"data_offsets":[0,96]},"t":{"dtype":"F32","shape":[2,3,4],"data_offsets":[96,192]},
		"t_bias":{"dtype":"F32","shape":[2,4],"data_offsets":[192,224]}}`, floats(slices.Concat(plain, turned, bias)...))
	for _, test := range []struct {
		stack   Stack
		expert  int
		outputs Outputs
		want    []float32
	}{
		{Stack{Tensor: "p", Experts: 2, Rows: 4, Cols: 3}, 1, Outputs{First: 2, Step: 1, Count: 2}, []float32{120, 121, 122, 130, 131, 132}},
		{Stack{Tensor: "p", Experts: 2, Rows: 4, Cols: 3}, 0, Outputs{First: 1, Step: 2, Count: 2}, []float32{10, 11, 12, 30, 31, 32}},
		{Stack{Tensor: "t", Experts: 2, Rows: 4, Cols: 3, Transposed: true}, 1, Outputs{First: 0, Step: 2, Count: 2}, []float32{100, 101, 102, 120, 121, 122}},
		{Stack{Tensor: "t", Experts: 2, Rows: 4, Cols: 3, Transposed: true}, 0, Outputs{First: 1, Step: 2, Count: 2}, []float32{10, 11, 12, 30, 31, 32}},
	} {
		var s Scratch
		got, err := c.Expert(test.stack, test.expert, test.outputs, &s)
		if err != nil {
			t.Fatal(err)
		}
		values := make([]float32, len(test.want))
		if _, err := binary.Decode(got.Codes, binary.LittleEndian, values); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(values, test.want) || got.Rows != 2 || got.Cols != 3 {
			t.Errorf("%+v, expert %d, %+v: %v of [%d, %d], want %v", test.stack, test.expert, test.outputs, values, got.Rows, got.Cols, test.want)
		}
	}
	var s Scratch
	if got, err := c.ExpertBias("t_bias", 2, 4, 1, Outputs{First: 1, Step: 2, Count: 2}, &s); err != nil || !slices.Equal(got, []float32{101, 103}) {
		t.Errorf("bias %v, %v, want 101 and 103", got, err)
	}
	for want, err := range map[string]error{
		`"missing": missing`: second(c.Expert(Stack{Tensor: "missing", Experts: 2, Rows: 4, Cols: 3}, 0, Outputs{Step: 1, Count: 4}, &s)),
		"shape [2 4 3], but the configuration gives [3 4 3]": second(c.Expert(Stack{Tensor: "p", Experts: 3, Rows: 4, Cols: 3}, 0, Outputs{Step: 1, Count: 4}, &s)),
		"shape [2 3 4], but the configuration gives [2 4 3]": second(c.Expert(Stack{Tensor: "t", Experts: 2, Rows: 4, Cols: 3}, 0, Outputs{Step: 1, Count: 4}, &s)),
		"shape [2 4], but the configuration gives [2 5]":     second(c.ExpertBias("t_bias", 2, 5, 0, Outputs{Step: 1, Count: 4}, &s)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Two experts with 2 outputs and 32 inputs in MXFP4.
func TestExpertsAreReadOutOfMXFP4Stacks(t *testing.T) {
	data := make([]byte, 2*2*16+2*2)
	for i := range data {
		data[i] = byte(i)
	}
	const header = `{"t_blocks":{"dtype":"U8","shape":[2,2,1,16],"data_offsets":[0,64]},"t_scales":{"dtype":"U8","shape":[2,2,1],"data_offsets":[64,68]}}`
	c := opened(t, header, data)
	var s Scratch
	got, err := c.Expert(Stack{Tensor: "t", Experts: 2, Rows: 2, Cols: 32, Transposed: true}, 1, Outputs{First: 1, Step: 2, Count: 1}, &s)
	if err != nil || got.Form != canon.MXFP4 || got.Group != 32 || got.ScaleForm != canon.E8M0 || !slices.Equal(got.Codes, data[48:64]) || !slices.Equal(got.Scales, data[67:68]) {
		t.Errorf("%+v, %v", got, err)
	}
	for want, stack := range map[string]Stack{
		"shape [2 2 1 16], but the configuration gives [2 2 2 16]": {Tensor: "t", Experts: 2, Rows: 2, Cols: 64},
		"48 inputs are not whole blocks of 32":                     {Tensor: "t", Experts: 2, Rows: 2, Cols: 48},
	} {
		if _, err := c.Expert(stack, 0, Outputs{Step: 1, Count: 1}, &s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c = opened(t, strings.Replace(header, "t_scales", "u_scales", 1), data)
	if _, err := c.Expert(Stack{Tensor: "t", Experts: 2, Rows: 2, Cols: 32}, 0, Outputs{Step: 1, Count: 1}, &s); err == nil || !strings.Contains(err.Error(), `"t_scales": missing`) {
		t.Errorf("without scales: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// opened opens a checkpoint of one file.
func opened(t testing.TB, header string, data []byte) *Checkpoint {
	t.Helper()
	c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": safetensors(header, data)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
