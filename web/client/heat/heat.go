// Package heat turns routing rows into the pixels of a small layers-by-experts grid: cells that the newest token chose
// are full, earlier ones fade. It knows no document, so that it is tested natively.
package heat

// fade is what remains of a cell's level after each later token.
const fade = 0.8

// Grid is [layers, experts] levels from 0 (never) to 1 (now).
type Grid struct {
	Layers, Experts int
	level           []float32
	pixels          []byte
}

// New returns an empty grid.
func New(layers, experts int) *Grid {
	return &Grid{Layers: layers, Experts: experts, level: make([]float32, layers*experts), pixels: make([]byte, 4*layers*experts)}
}

// Clear empties the grid.
func (g *Grid) Clear() { clear(g.level) }

// Add fades what there is and lights the experts of one token: ids and weights are [layers, k], weights 0..255.
func (g *Grid) Add(ids []uint16, weights []byte) {
	for i := range g.level {
		g.level[i] *= fade
	}
	g.light(ids, weights)
}

// Show lights the experts of one token alone.
func (g *Grid) Show(ids []uint16, weights []byte) {
	g.Clear()
	g.light(ids, weights)
}

func (g *Grid) light(ids []uint16, weights []byte) {
	if g.Layers == 0 || len(ids)%g.Layers != 0 || len(ids) != len(weights) {
		return
	}
	k := len(ids) / g.Layers
	for i, id := range ids {
		if int(id) < g.Experts {
			at := i/k*g.Experts + int(id)
			g.level[at] = max(g.level[at], 0.45+0.55*float32(weights[i])/255)
		}
	}
}

// Sum adds up weights of many tokens (for a whole answer) and scales the largest to 1.
func (g *Grid) Sum(rows int, row func(i int) (ids []uint16, weights []byte)) {
	g.Clear()
	for r := range rows {
		ids, weights := row(r)
		if g.Layers == 0 || len(ids)%g.Layers != 0 || len(ids) == 0 {
			continue
		}
		k := len(ids) / g.Layers
		for i, id := range ids {
			if int(id) < g.Experts {
				g.level[i/k*g.Experts+int(id)] += float32(weights[i])
			}
		}
	}
	most := float32(0)
	for _, v := range g.level {
		most = max(most, v)
	}
	for i := range g.level {
		if most > 0 {
			g.level[i] /= most
		}
	}
}

// Pixels renders the grid as RGBA, one pixel a cell, in one colour whose opacity is the level; empty cells show what is
// behind the canvas. The slice is reused by the next call. Cost: 4 bytes written a cell.
func (g *Grid) Pixels(red, green, blue byte) []byte {
	for i, v := range g.level {
		p := g.pixels[4*i : 4*i+4 : 4*i+4]
		p[0], p[1], p[2], p[3] = red, green, blue, byte(v*255)
	}
	return g.pixels
}
