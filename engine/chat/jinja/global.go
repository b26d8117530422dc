package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxRange is the longest list that range() makes.
const maxRange = 100_000

// globals are the functions that templates may call.
var globals = map[string]*function{
	"range":           {globalRange},
	"namespace":       {globalNamespace},
	"dict":            {globalDict},
	"raise_exception": {globalRaise},
	"strftime_now":    {globalNow},
}

func globalRange(m *machine, a arguments) (Value, error) {
	var bounds [3]int64
	for i := range a.positional {
		if i == len(bounds) {
			return nil, fmt.Errorf("range takes at most three numbers")
		}
		n, err := a.integer(i, "bound", 0)
		if err != nil {
			return nil, err
		}
		bounds[i] = n
	}
	from, to, step := bounds[0], bounds[1], bounds[2]
	switch len(a.positional) {
	case 0:
		return nil, fmt.Errorf("range needs a number")
	case 1:
		from, to, step = 0, from, 1
	case 2:
		step = 1
	}
	if step == 0 {
		return nil, fmt.Errorf("range's step is zero")
	}
	out := NewList()
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(out.items) == maxRange {
			return nil, fmt.Errorf("%w: range of more than %d numbers", ErrLimit, maxRange)
		}
		out.Append(i)
		if step > 0 && i > to-step || step < 0 && i < to-step {
			break
		}
	}
	return out, m.charge(16 * len(out.items))
}

func globalNamespace(m *machine, a arguments) (Value, error) {
	ns := &namespace{NewDict()}
	for _, v := range a.positional {
		d, ok := v.(*Dict)
		if !ok {
			return nil, fmt.Errorf("namespace of %s", kind(v))
		}
		for _, e := range d.entries {
			ns.attributes.put(e.key, e.value)
		}
	}
	for _, name := range a.order {
		ns.attributes.Set(name, a.named[name])
	}
	return ns, m.charge(weight(ns.attributes))
}

func globalDict(m *machine, a arguments) (Value, error) {
	d := NewDict()
	if len(a.positional) > 0 {
		from, ok := a.positional[0].(*Dict)
		if !ok {
			return nil, fmt.Errorf("dict of %s", kind(a.positional[0]))
		}
		for _, e := range from.entries {
			d.put(e.key, e.value)
		}
	}
	for _, name := range a.order {
		d.Set(name, a.named[name])
	}
	return d, m.charge(weight(d))
}

func globalRaise(m *machine, a arguments) (Value, error) {
	if len(a.positional) == 0 {
		return nil, &Raised{"the template refuses this conversation"}
	}
	t, err := m.str(a.positional[0])
	if err != nil {
		return nil, err
	}
	return nil, &Raised{t.s}
}

func globalNow(m *machine, a arguments) (Value, error) {
	format, err := a.text(0, "format", "%Y-%m-%d")
	if err != nil {
		return nil, err
	}
	text, err := strftime(m.now, format.s)
	return Trusted(text), err
}

// strftime formats a time by the directives of C; a "-" after the % drops padding.
func strftime(t time.Time, format string) (string, error) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'B': "January",
		'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'j': "002", 'z': "-0700", 'Z': "MST", 'F': "2006-01-02",
		'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'e': "_2", 'c': "Mon Jan _2 15:04:05 2006",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
			continue
		case format[i] == 'f':
			b.WriteString(fmt.Sprintf("%06d", t.Nanosecond()/1000))
			continue
		case format[i] == 'u':
			b.WriteString(strconv.Itoa((int(t.Weekday())+6)%7 + 1))
			continue
		case format[i] == 'w':
			b.WriteString(strconv.Itoa(int(t.Weekday())))
			continue
		case !ok:
			return "", fmt.Errorf("strftime_now: directive %%%c is not supported", format[i])
		}
		text := t.Format(layout)
		if bare {
			if text = strings.TrimLeft(text, "0 "); text == "" {
				text = "0"
			}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
