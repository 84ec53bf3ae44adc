//! A chart of some rows of the collectives' table, as SVG, with a bar for each system. The length of a bar is the
//! system's median time divided by the limit of the links.
//!
//! Invariant: the chart shows figures of the table alone, and shows losses, too.

use std::fmt::Write;

use crate::readme::FigureTable;

/// Pixels: the width of the picture, the left end of the bars, the height of a bar with its gap, the heading of a row.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const BAR: f64 = 18.0;
const HEADING: f64 = 30.0;
/// Room behind the longest bar for its number.
const RIGHT: f64 = 60.0;
const OURS: &str = "Outboard";

/// The bars of a row: systems and ratios.
type Bars<'a> = Vec<(&'a str, f64)>;

/// Draws the rows of `table` that have a limit. A system without a figure has no bar.
///
/// # Panics
/// If the table has no column `limit`.
#[must_use]
pub fn chart(table: &FigureTable) -> String {
    let limit = table.columns[1..].iter().position(|column| column == "limit").expect("a table with limits");
    let rows: Vec<(&str, Bars<'_>)> = table.rows.iter().filter_map(|row| bars(table, row, limit)).collect();
    let longest = rows.iter().flat_map(|(_, bars)| bars).fold(1.0_f64, |longest, (_, ratio)| longest.max(*ratio));
    let x = |ratio: f64| LEFT + ratio / longest * (WIDTH - LEFT - RIGHT);
    let (mut shapes, mut y) = (String::new(), 0.0);
    let mut draw = |shape: std::fmt::Arguments<'_>| writeln!(shapes, "{shape}").expect("a string takes all");
    for (name, bars) in &rows {
        y += HEADING;
        draw(format_args!(r#"<text x="8" y="{:.0}" font-weight="bold">{name}</text>"#, y - 8.0));
        for (system, ratio) in bars {
            let (colour, end, base) = (if *system == OURS { "#1f6fb2" } else { "#b8bec6" }, x(*ratio), y + 13.0);
            draw(format_args!(r#"<text x="{:.0}" y="{base:.0}" text-anchor="end">{system}</text>"#, LEFT - 8.0));
            let (width, height) = (end - LEFT, BAR - 3.0);
            draw(format_args!(r#"<rect x="{LEFT}" y="{y:.0}" width="{width:.1}" height="{height}" fill="{colour}"/>"#));
            draw(format_args!(r#"<text x="{:.1}" y="{base:.0}">{ratio:.2}</text>"#, end + 6.0));
            y += BAR;
        }
    }
    let height = y + HEADING;
    draw(format_args!(r##"<path d="M{0:.1} {HEADING} V{y:.0}" stroke="#333" stroke-dasharray="3 3"/>"##, x(1.0)));
    draw(format_args!(r#"<text x="{:.1}" y="{:.0}" text-anchor="middle">limit of the links</text>"#, x(1.0), y + 18.0));
    let size = format!(r#"width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}""#);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" {size} font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{shapes}</svg>\n"
    )
}

/// The bars of one row; `None` if the row has no limit.
fn bars<'a>(table: &'a FigureTable, row: &'a crate::readme::TableRow, limit: usize) -> Option<(&'a str, Bars<'a>)> {
    let median = |text: &str| text.split(' ').next()?.parse::<f64>().ok();
    let least = median(&row.figures[limit])?;
    let systems = table.columns[1..].iter().zip(&row.figures).enumerate().filter(|(at, _)| *at != limit);
    let bars = systems.filter_map(|(_, (system, text))| Some((system.as_str(), median(text)? / least))).collect();
    Some((row.name.as_str(), bars))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readme::TableRow;

    #[test]
    fn a_bar_is_as_long_as_the_median_over_the_limit_and_rows_without_a_limit_have_none() {
        let text = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let columns = ["what", "limit", "Outboard", "MPICH 5.0"].map(str::to_owned).to_vec();
        let rows = vec![
            TableRow { name: "first".into(), figures: text(["10.0", "12.5 [1..9]", "40.0"]) },
            TableRow { name: "second".into(), figures: text(["", "1", "2"]) },
        ];
        let svg = chart(&FigureTable { name: "collectives".into(), columns, rows });
        assert!(svg.contains(">1.25</text>") && svg.contains(">4.00</text>") && !svg.contains("second"), "{svg}");
        assert_eq!(svg.matches("<rect x=").count(), 2);
    }
}
