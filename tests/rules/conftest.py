"""Property tests of the rules have no time limit of their own: a busy machine is no broken law."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
