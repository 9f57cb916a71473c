"""One file per question; ``python -m bench`` asks them all. Every claim about speed has its file here."""
