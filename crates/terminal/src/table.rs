//! Tables for people: columns aligned by spaces, no borders, readable in any log.

/// Rows of cells under a header. The last column is never padded, so lines have no trailing spaces.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells
            .chain(header.get(column).map(|cell| cell.len()))
            .max()
            .unwrap_or(0)
    };
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = if column + 1 == cells.len() {
                0
            } else {
                width(column) + 2
            };
            line.push_str(&format!("{cell:width$}"));
        }
        line + "\n"
    };
    let body = rows
        .iter()
        .map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    line(header) + &body.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_spaces() {
        let rows = [
            vec!["postgres".to_owned(), "given".to_owned()],
            vec!["nats".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table(&["service", "how"], &rows),
            "service   how\npostgres  given\nnats      x\n"
        );
    }
}
