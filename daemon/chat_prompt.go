package daemon

import (
	"context"
	"strings"

	"covey/engine"
	"covey/engine/chat"
	"covey/engine/tokenizer"
	"covey/store"
)

// encodePrompt turns a conversation into tokens and returns what splits the answer to them. What people and models
// wrote never becomes a special token. text is a further message of the person's ("" = none); prefix is the beginning of
// the answer.
func encodePrompt(ctx context.Context, eng *engine.Engine, system string, history []store.Message, text, prefix string) ([]int32, *chat.Reply, error) {
	var messages []chat.Message
	if system != "" {
		messages = append(messages, chat.Message{Role: "system", Content: system})
	}
	for _, m := range history {
		messages = append(messages, chat.Message{Role: string(m.Role), Content: m.Content, Reasoning: m.Reasoning})
	}
	if text != "" {
		messages = append(messages, chat.Message{Role: "user", Content: text})
	}
	template := eng.Template()
	if template == nil {
		// A model that only continues text gets the text.
		var b strings.Builder
		for _, m := range messages {
			b.WriteString(m.Content + "\n\n")
		}
		ids, err := eng.Tokenizer().EncodeSegments([]tokenizer.Segment{{Text: b.String() + prefix}}, true)
		if err != nil {
			return nil, nil, problem(KindInput, "invalid", "", err, "the conversation cannot be encoded")
		}
		return ids, chat.NewReply(chat.Format{}, false), nil
	}
	segments, err := template.Render(ctx, messages, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, nil, problem(KindInput, "template", "the model's chat template does not take this conversation", err, "the prompt cannot be made")
	}
	reply := template.Reply(segments, false)
	if prefix != "" {
		reply = chat.NewReply(chat.Format{}, false) // the answer proper has begun already
		segments = append(segments, tokenizer.Segment{Text: prefix})
	}
	ids, err := eng.Tokenizer().EncodeSegments(segments, false)
	if err != nil {
		return nil, nil, problem(KindInput, "invalid", "", err, "the conversation cannot be encoded")
	}
	return ids, reply, nil
}

// countTokens is the number of tokens of a text that a person writes.
func countTokens(eng *engine.Engine, text string) (int, error) {
	ids, err := eng.Tokenizer().EncodeSegments([]tokenizer.Segment{{Text: text}}, false)
	if err != nil {
		return 0, problem(KindInput, "invalid", "", err, "the text cannot be encoded")
	}
	return len(ids), nil
}

// tokenText is a token's text on its own; bytes that are no whole character show as a replacement character.
func tokenText(eng *engine.Engine, id int32) string {
	return eng.Tokenizer().Decode([]int32{id}, false)
}
