//! The report as charts: one SVG file per question, one line per system, sizes or grids along the axis.

use crate::BenchError;
use plotters::prelude::*;
use std::fs;
use std::path::Path;

const SIZE: (u32, u32) = (800, 480);

/// One chart: a line for each system.
pub(crate) struct Figure {
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) scale: Scale,
    /// What no system can beat, drawn as a line of its own; `None` where that depends on the place.
    pub(crate) reference: Option<f64>,
    pub(crate) x_title: &'static str,
    /// Places on the axis are evenly spaced, and labelled by this.
    pub(crate) x_label: fn(u64) -> String,
    pub(crate) points: Vec<Point>,
}

/// How far up a value is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0 or below.
    Linear,
    /// By its logarithm; values that have none are left out.
    Logarithmic,
}

impl Scale {
    fn height(self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => Some(value),
            Self::Logarithmic => (value > 0.0).then(|| value.log10()),
        }
    }

    fn label(self, height: f64) -> String {
        match self {
            Self::Linear => format!("{height:.1}"),
            Self::Logarithmic => format!("{:.2}", 10_f64.powf(height)),
        }
    }

    /// Lowest and highest height of the chart.
    fn range(self, heights: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let ends = |(low, high): (f64, f64), height: f64| (low.min(height), high.max(height));
        match self {
            Self::Linear => {
                let (low, high) = heights.fold((0.0, 0.0), ends);
                low * 1.1..high * 1.1
            }
            // From the power of ten below the values to the one above; one decade where there are no values.
            Self::Logarithmic => {
                let (low, high) = heights.fold((f64::INFINITY, f64::NEG_INFINITY), ends);
                if low <= high { low.floor()..high.ceil().max(low.floor() + 1.0) } else { 0.0..1.0 }
            }
        }
    }
}

/// One system at one place on the axis.
pub(crate) struct Point {
    pub(crate) system: String,
    pub(crate) x: u64,
    pub(crate) value: f64,
}

/// Writes every chart into `directory`, if there is one, which is made if need be.
pub(crate) fn draw(figures: &[Figure], directory: Option<&Path>) -> Result<(), BenchError> {
    let Some(directory) = directory else { return Ok(()) };
    fs::create_dir_all(directory).map_err(BenchError::system(format!("make {}", directory.display())))?;
    for figure in figures {
        let path = directory.join(figure.file);
        draw_figure(figure, &path)
            .map_err(|error| BenchError::Plot { path: path.clone(), reason: error.to_string() })?;
    }
    Ok(())
}

fn draw_figure(figure: &Figure, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let places = places(figure);
    let scale = figure.scale;
    let values = figure.points.iter().map(|point| point.value).chain(figure.reference);
    let heights = scale.range(values.filter_map(|value| scale.height(value)));
    let last = places.len().saturating_sub(1) as f64;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut context = ChartBuilder::on(&root)
        .caption(figure.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.2..last + 0.2, heights)?;
    let label = |at: &f64| match places.get(at.round() as usize) {
        Some(x) if (at - at.round()).abs() < 1e-6 => (figure.x_label)(*x),
        _ => String::new(),
    };
    context
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(places.len() * 10)
        .x_label_formatter(&label)
        .y_label_formatter(&|height| scale.label(*height))
        .x_desc(figure.x_title)
        .y_desc(figure.unit)
        .draw()?;
    if let Some(reference) = figure.reference.and_then(|value| scale.height(value)) {
        let line = [(-0.2, reference), (last + 0.2, reference)];
        context.draw_series(LineSeries::new(line, BLACK.mix(0.5)))?;
    }
    for (index, system) in distinct(figure.points.iter().map(|point| point.system.as_str())).iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let at = |x: u64| {
            let point = figure.points.iter().find(|point| point.x == x && point.system == *system)?;
            scale.height(point.value)
        };
        let line = places.iter().enumerate().filter_map(|(place, x)| Some((place as f64, at(*x)?)));
        context
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(4))?
            .label(*system)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    context.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    root.present()?;
    Ok(())
}

fn places(figure: &Figure) -> Vec<u64> {
    let mut places: Vec<u64> = figure.points.iter().map(|point| point.x).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Every name once, in the order in which they come first.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::Scale;
    use crate::Report;
    use crate::report::tests::row;
    use std::fs;

    #[test]
    fn heights_are_values_or_their_powers_of_ten() {
        assert_eq!(Scale::Linear.range([2.0, 30.0].into_iter()), 0.0..33.0);
        let heights = [0.5, 0.0, 25.0].into_iter().filter_map(|value| Scale::Logarithmic.height(value));
        assert_eq!(Scale::Logarithmic.range(heights), -1.0..2.0);
        assert_eq!(Scale::Logarithmic.range([0.0].into_iter()), 0.0..1.0);
        assert_eq!(Scale::Logarithmic.range(std::iter::empty()), 0.0..1.0);
        assert_eq!((Scale::Linear.label(1.5), Scale::Logarithmic.label(-1.0)), ("1.5".into(), "0.10".into()));
    }

    #[test]
    fn charts_name_every_system_and_size() {
        let directory = tempfile::tempdir().unwrap();
        let rows = vec![
            row("outboard", 1 << 20, 26.0),
            row("outboard", 4 << 20, 105.0),
            row("mpich", 1 << 20, 27.0),
            row("mpich", 4 << 20, 111.0),
        ];
        let figures = Report { rows }.figures();
        super::draw(&figures, Some(&directory.path().join("charts"))).unwrap();
        for figure in &figures {
            let text = fs::read_to_string(directory.path().join("charts").join(figure.file)).unwrap();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            for word in ["outboard", "mpich", "1M", "4M", figure.unit] {
                assert!(text.contains(word), "{word} in {}", figure.file);
            }
        }
    }
}
