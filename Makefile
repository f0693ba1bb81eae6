# The commands of the texts under short names. CONTRIBUTING.md says what each of them needs.
PYTHON ?= python3
.PHONY: test lint lectures grade tables ci

test:
	$(PYTHON) -m pytest test_grpo.py tests

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

lectures:
	$(PYTHON) -m jupyter nbconvert --to notebook --execute --inplace course/lecture-1.ipynb course/lecture-2.ipynb

grade:
	$(PYTHON) course/instructor/grade.py

tables:
	$(PYTHON) -m studies.timing --only-tables
	$(PYTHON) -m studies.compare --only-tables
	$(PYTHON) -m studies.difficulty
	$(PYTHON) -m studies.equal_time --only-tables
	$(PYTHON) -m studies.gradients --only-tables
	$(PYTHON) -m studies.displacement --only-tables
	$(PYTHON) -m studies.pass_at_k --only-tables
	$(PYTHON) -m studies.dose --only-tables
	$(PYTHON) -m studies.language_model --only-tables

ci:
	.ci/run
