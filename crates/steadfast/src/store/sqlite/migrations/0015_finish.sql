-- Nothing: on SQLite statements are not planned by what a table held at some time.
SELECT 1;
