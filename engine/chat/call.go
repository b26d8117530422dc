package chat

import (
	"encoding/json"
	"strings"
)

// object is text as a JSON object, compacted of the white space around it.
func object(text string) (json.RawMessage, bool) {
	raw := json.RawMessage(strings.TrimSpace(text))
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return nil, false
	}
	return raw, true
}

// jsonCall is a call as JSON: the arguments are an object under "arguments" or "parameters", or a text that holds one.
type jsonCall struct {
	ID         string          `json:"id"`
	Name       string          `json:"name"`
	Arguments  json.RawMessage `json:"arguments"`
	Parameters json.RawMessage `json:"parameters"`
}

func (c *jsonCall) call() (ToolCall, bool) {
	raw := c.Arguments
	if raw == nil {
		raw = c.Parameters
	}
	var inner string
	if json.Unmarshal(raw, &inner) == nil {
		raw = json.RawMessage(inner)
	}
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	arguments, ok := object(string(raw))
	return ToolCall{ID: c.ID, Name: c.Name, Arguments: arguments}, ok && c.Name != ""
}

// parseTagged parses the body of <tool_call>: JSON, <function=name> with parameters, or a name with <arg_key> pairs.
func parseTagged(body string) (ToolCall, bool) {
	body = strings.TrimSpace(body)
	switch {
	case strings.HasPrefix(body, "{"):
		var c jsonCall
		if json.Unmarshal([]byte(body), &c) != nil {
			return ToolCall{}, false
		}
		return c.call()
	case strings.HasPrefix(body, "<function="):
		name, rest, ok := strings.Cut(body[len("<function="):], ">")
		return pairs(strings.TrimSpace(name), rest, "<parameter=", ">", "</parameter>", ok)
	}
	name, rest, _ := strings.Cut(body, "<arg_key>")
	if rest != "" {
		rest = "<arg_key>" + rest
	}
	name = strings.TrimSpace(name)
	return pairs(name, rest, "<arg_key>", "</arg_key>", "</arg_value>", name != "" && !strings.ContainsAny(name, " \n<{"))
}

// pairs reads arguments: each an opening marker, a name, a middle marker, a value and a closing marker. A value that is
// JSON but no string is taken as JSON, everything else as text.
func pairs(name, rest, open, middle, end string, ok bool) (ToolCall, bool) {
	var b strings.Builder
	b.WriteByte('{')
	for {
		_, after, found := strings.Cut(rest, open)
		if !found {
			break
		}
		key, after, okKey := strings.Cut(after, middle)
		value, after, okValue := strings.Cut(after, end)
		ok = ok && okKey && okValue
		rest = after
		value = strings.TrimPrefix(strings.TrimSpace(value), "<arg_value>")
		value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
		if b.Len() > 1 {
			b.WriteString(", ")
		}
		b.Write(quote(strings.TrimSpace(key)))
		b.WriteString(": ")
		if json.Valid([]byte(value)) && !strings.HasPrefix(value, `"`) {
			b.WriteString(value)
		} else {
			b.Write(quote(value))
		}
	}
	b.WriteByte('}')
	return ToolCall{Name: name, Arguments: json.RawMessage(b.String())}, ok && name != ""
}

// quote is text as a JSON string without HTML's escapes.
func quote(text string) []byte {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return []byte(`""`)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

// parseDeepSeek parses "function<sep>name\n```json\n{...}\n```" and the later "name<sep>{...}".
func parseDeepSeek(body string) (ToolCall, bool) {
	before, after, ok := strings.Cut(body, deepSeekSep)
	if !ok {
		return ToolCall{}, false
	}
	name, text := before, after
	if head, fenced, ok := strings.Cut(after, "```json"); ok {
		name, text = head, fenced[:max(0, strings.LastIndex(fenced, "```"))]
	}
	name = strings.TrimSpace(name)
	arguments, ok := object(text)
	return ToolCall{Name: name, Arguments: arguments}, ok && name != ""
}

// parseMistral parses a JSON list of calls, or the later name[ARGS]{...}, repeated with the opening marker between.
func parseMistral(text string) ([]ToolCall, bool) {
	text = strings.TrimSpace(text)
	var out []ToolCall
	if !strings.HasPrefix(text, "[") {
		for part := range strings.SplitSeq(text, mistralOpen) {
			name, raw, ok := strings.Cut(part, mistralArgs)
			arguments, isObject := object(raw)
			if !ok || !isObject {
				return nil, false
			}
			out = append(out, ToolCall{Name: strings.TrimSpace(name), Arguments: arguments})
		}
		return out, true
	}
	var list []jsonCall
	if json.Unmarshal([]byte(text), &list) != nil || len(list) == 0 {
		return nil, false
	}
	for i := range list {
		c, ok := list[i].call()
		if !ok {
			return nil, false
		}
		out = append(out, c)
	}
	return out, true
}

// parseLlama parses one call as JSON, or several with ";" or line breaks between.
func parseLlama(text string) ([]ToolCall, bool) {
	var out []ToolCall
	for text = strings.TrimSpace(text); text != ""; {
		d := json.NewDecoder(strings.NewReader(text))
		var c jsonCall
		if d.Decode(&c) != nil {
			return nil, false
		}
		call, ok := c.call()
		if !ok {
			return nil, false
		}
		out = append(out, call)
		text = strings.TrimLeft(text[d.InputOffset():], "; \n\r\t")
	}
	return out, len(out) > 0
}
