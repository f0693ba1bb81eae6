"""The course: lectures, assignment, exercises, and in instructor/ what its teachers need."""
