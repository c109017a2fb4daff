"""Hot words: phrases whose tokens get a bonus, from a list to the filter of the next token."""
