package canon

import (
	"slices"
	"testing"
	"testing/fstest"
)

// system is a /sys/devices/system with the given files.
func system(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return out
}

func TestCoresAreOneProcessorOfEachByNode(t *testing.T) {
	siblings := func(n int) string { return "cpu/cpu" + string(rune('0'+n)) + "/topology/thread_siblings_list" }
	adjacent := map[string]string{siblings(0): "0-1", siblings(1): "0-1", siblings(2): "2-3", siblings(3): "2-3"}
	apart := map[string]string{ // two sockets of two cores of two threads, numbered by turns
		siblings(0): "0,4", siblings(4): "0,4", siblings(1): "1,5", siblings(5): "1,5", siblings(2): "2,6", siblings(6): "2,6", siblings(3): "3,7", siblings(7): "3,7",
		"node/node0/cpulist": "0,2,4,6", "node/node1/cpulist": "1,3,5,7", "node/online": "0-1",
	}
	for _, c := range []struct {
		what    string
		files   map[string]string
		allowed []int
		want    []core
	}{
		{"no files", nil, []int{0, 1}, []core{{0, 0}, {1, 0}}},
		{"two threads a core", adjacent, []int{0, 1, 2, 3}, []core{{0, 0}, {2, 0}}},
		{"the first of two threads is not ours", adjacent, []int{1, 2, 3}, []core{{1, 0}, {2, 0}}},
		{"one processor", adjacent, []int{3}, []core{{3, 0}}},
		{"two nodes, numbered by turns", apart, []int{0, 1, 2, 3, 4, 5, 6, 7}, []core{{0, 0}, {2, 0}, {1, 1}, {3, 1}}},
		{"a part of two nodes", apart, []int{3, 4, 7}, []core{{4, 0}, {3, 1}}},
		{"four threads a core, the first not ours", map[string]string{siblings(1): "0-3", siblings(2): "0-3", siblings(3): "0-3"}, []int{1, 2, 3}, []core{{1, 0}}},
		{"a file that is not a list", map[string]string{siblings(0): "zero", "node/node1/cpulist": "0-x", "node/node2/cpulist": ""}, []int{0}, []core{{0, 0}}},
		{"no processor", apart, nil, nil},
	} {
		if got := cores(system(c.files), c.allowed); !slices.Equal(got, c.want) {
			t.Errorf("%s: cores are %v, want %v", c.what, got, c.want)
		}
	}
}
