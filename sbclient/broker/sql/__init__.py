"""The SQL of subscription rules: `parser` makes a tree, `predicates` and `statements` make functions of it.

Importing this package loads none of these modules, because only rules written in SQL need the parser.
"""
