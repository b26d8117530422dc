package main

import (
	"context"

	"covey/engine"
	"covey/engine/chat"
)

// turn is one message of a conversation in the terminal.
type turn struct{ role, text string }

// encodeChat turns a conversation into the tokens of a prompt for its next answer. What people typed never becomes a
// special token; only the template's own text does.
func encodeChat(ctx context.Context, eng *engine.Engine, system string, turns []turn) ([]int32, error) {
	template := eng.Template()
	if template == nil {
		return nil, chat.ErrNoTemplate
	}
	var messages []chat.Message
	if system != "" {
		messages = append(messages, chat.Message{Role: "system", Content: system})
	}
	for _, t := range turns {
		messages = append(messages, chat.Message{Role: t.role, Content: t.text})
	}
	segments, err := template.Render(ctx, messages, chat.Options{AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	return eng.Tokenizer().EncodeSegments(segments, false)
}
