// Package jsonfault says in plain words why a JSON document is not what its reader wants: in which field, what stands there
// and what was wanted. The decoders (encoding/json and go-json-experiment/json) name Go types, which mean nothing to
// whoever wrote the document.
package jsonfault

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Class sorts faults.
type Class uint8

// Classes.
const (
	Syntax  Class = iota // not JSON
	Twice                // a name stands twice in one object
	Unknown              // a name that the reader does not know
	Type                 // a value of another type
)

// Fault is one thing that is wrong with a document.
type Fault struct {
	Class  Class
	Field  string // as in layers[0].name; "" = the document itself
	Offset int64  // bytes before the place; 0 where the decoder does not say
	Detail string // what is wrong there, without field and offset
	Err    error  // the decoder's
}

// maxField is how much of a long field's beginning and end is shown.
const maxField = 80

// Error names field, fault and place.
func (f *Fault) Error() string {
	text := f.Detail
	if field := f.Field; field != "" {
		if len(field) > 2*maxField { // the fault is at its end; a document may be nested thousands deep
			field = strings.ToValidUTF8(field[:maxField]+"..."+field[len(field)-maxField:], "")
		}
		text = field + ": " + text
	}
	if f.Offset > 0 {
		text += fmt.Sprintf(" (at byte %d)", f.Offset)
	}
	return text
}

func (f *Fault) Unwrap() error { return f.Err }

// Plain is err in plain words where a decoder made it, and otherwise err itself.
func Plain(err error) error {
	if f := Of(err); f != nil {
		return f
	}
	return err
}

// Of finds the fault that a decoder reports in err's chain; nil = none.
func Of(err error) *Fault {
	var syntax *jsontext.SyntacticError
	var kind *json.SemanticError
	var oldSyntax *stdjson.SyntaxError
	var oldKind *stdjson.UnmarshalTypeError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return &Fault{Class: Twice, Field: Field(syntax.JSONPointer), Offset: syntax.ByteOffset, Detail: "it stands twice", Err: err}
	case errors.As(err, &syntax):
		return &Fault{Class: Syntax, Field: Field(syntax.JSONPointer), Offset: syntax.ByteOffset, Detail: "no valid JSON: " + syntax.Err.Error(), Err: err}
	case errors.Is(err, json.ErrUnknownName) && errors.As(err, &kind):
		return &Fault{Class: Unknown, Field: Field(kind.JSONPointer), Offset: kind.ByteOffset, Detail: "no such field is known", Err: err}
	case errors.As(err, &kind):
		f := &Fault{Class: Type, Offset: kind.ByteOffset, Err: err}
		at := kind.JSONPointer
		for errors.As(kind.Err, &kind) { // of a type that reads itself
			at += kind.JSONPointer
		}
		f.Field, f.Detail = Field(at), instead(found(kind), kind.GoType)
		return f
	case errors.As(err, &oldSyntax):
		return &Fault{Class: Syntax, Offset: oldSyntax.Offset, Detail: "no valid JSON: " + oldSyntax.Error(), Err: err}
	case errors.As(err, &oldKind):
		return &Fault{Class: Type, Field: oldKind.Field, Offset: oldKind.Offset, Detail: instead(oldKind.Value, oldKind.Type), Err: err}
	}
	return nil
}

// Field spells a place in a document as in messages[0].content.
func Field(at jsontext.Pointer) string {
	const most = 50 // bytes of a name
	var b strings.Builder
	for token := range at.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil && b.Len() > 0 {
			fmt.Fprintf(&b, "[%s]", token)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(cut(token, most))
	}
	return b.String()
}

// cut shortens text to at most n bytes of whole characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "..."
}

// found names what stands there: a number with its digits, since a whole one may have been wanted.
func found(e *json.SemanticError) string {
	switch e.JSONKind {
	case 'n':
		return "null"
	case 't', 'f':
		return "bool"
	case '"':
		return "string"
	case '0':
		if len(e.JSONValue) > 0 {
			return "number " + cut(string(e.JSONValue), 50)
		}
		return "number"
	case '{':
		return "object"
	}
	return "array"
}

// instead says what stands there and what was wanted in its place. A number that is refused where one of its kind was wanted
// is too large or too small.
func instead(found string, t reflect.Type) string {
	want := wanted(t)
	digits, number := strings.CutPrefix(found, "number ")
	whole := strings.Trim(strings.TrimSuffix(digits, "..."), "-0123456789") == ""
	if number && (want == "a number" || want == "a whole number" && whole) {
		return found + ", out of range"
	}
	return found + ", want " + want
}

// wanted names a Go type as a writer of JSON knows it.
func wanted(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return "a time such as 2006-01-02T15:04:05Z"
	case reflect.TypeFor[[]byte]():
		return "a text in base64"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	case reflect.Array:
		return fmt.Sprintf("a list of %d", t.Len())
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}
