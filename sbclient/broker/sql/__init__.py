"""The language of subscription rules: text to tree (`parser`), tree to functions (`evaluation`, `statements`).

Importing this package loads none of them: only a rule that is written in SQL pays for the parser.
"""
