"""`nlac view`: runs, episodes and the texts behind them as one HTML file.

    overview.py    runs, iterations and curves, of all data
    sample.py      which episodes fit into the page
    episodes.py    an episode with its steps, as JSON
    made.py        what was made of a step: backups, critiques, refinements
    columns.py     which columns of a row the page holds
    marks.py       leaking passages of a thought; tokens with their log-probabilities
    page.py        template, scripts and data as one file with a Content-Security-Policy
    page/          the template, styles and scripts of the page
    vendor/        libraries that the page holds, as their packages ship them

Data is read through the views of `storage.sql`. Text enters the page as JSON, and the document by text nodes alone.
"""
