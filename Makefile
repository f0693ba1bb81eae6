# The commands of the texts under short names. CONTRIBUTING.md says what each of them needs.
.PHONY: test lint lectures grade tables ci

test:
	python -m pytest test_grpo.py tests

lint:
	ruff check .
	ruff format --check .

lectures:
	jupyter nbconvert --to notebook --execute --inplace course/lecture-1.ipynb course/lecture-2.ipynb

grade:
	python course/instructor/grade.py

tables:
	python -m studies.group
	python -m studies.timing --only-tables
	python -m studies.compare --only-tables
	python -m studies.gradients --only-tables
	python -m studies.displacement --only-tables
	python -m studies.faithful --only-tables
	python -m studies.pass_at_k --only-tables

ci:
	.ci/run
