"""How to say it: plans become text, `{relative path: text}`, deterministically and without side effects."""
