"""Checks of jitmagic._frame that run on any Python, without torch and without pytest.

Every module has CHECKS, a dict of name -> function that raises on failure.
`python -m frame_checks PATH/_frame.so` runs them all against that build;
tests/frame/test_every_python.py builds and runs on each interpreter it finds.
"""
