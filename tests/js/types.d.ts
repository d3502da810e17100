// Shapes that the scripts share, global to them. Those of the API carry the names of its schemas (openapi.json).

/** Two moments, UTC seconds. */
type Stretch = [from: number, to: number];
/** A cut of the recording; its end is null until it is marked. */
type Cut = [from: number, to: number | null];

interface Span {
	t_start: number;
	t_end: number;
}

interface MissingSpan {
	t_start: number;
	t_end: number | null;
	kind: string;
	reason: string;
}

interface AlertMark {
	t_start: number;
	t_end: number | null;
	severity: string;
	title: string;
	page: string;
	verdict: string | null;
	review: string | null;
}

interface HealthMark {
	t_start: number;
	t_end: number | null;
	title: string;
	camera: string;
}

/** GET /api/v1/cameras/{name}/timeline */
interface TimelineReport {
	t_start: number;
	now: number;
	recorded: Span[];
	missing: MissingSpan[];
	activity: { t: number; looks: number[]; seen: number[] };
	alerts: AlertMark[];
	alerts_left_out: number;
	health: HealthMark[];
	codec: string | null;
	frame: string;
	recording: string;
}

/** A piece of a recording that a video element plays: GET /api/v1/cameras/{name}/recording */
interface Piece extends Span {
	url: string;
	from: number;
	to: number;
	sound: boolean;
	converted: boolean;
}

/** A bounding box: x1, y1, x2, y2 as shares of the frame. */
type Box = [number, number, number, number];
/** x, y as shares of the frame. */
type Point = [number, number];

/** An object that the detector found in one frame. */
interface FoundObject {
	track: number;
	label: string;
	score: number;
	box: Box;
}

/** One examined frame, at the camera's time. */
interface ExaminedFrame {
	t: number;
	objects: FoundObject[];
}

interface Rule {
	name: string;
	kind: "enter" | "exit" | "dwell" | "line";
	zone?: string;
	line?: string;
	labels?: string[];
	severity?: string;
	seconds?: number;
	direction?: string;
	score_min?: number;
	height_min?: number;
	height_max?: number;
	schedule?: { hours?: string[]; days?: string[] };
	title?: string;
	cooldown_s?: number;
	at_start?: string;
	escalate?: boolean;
	ask?: string;
	severity_on_verdict?: Record<string, string>;
}

/** The part of a camera's site file that the editor changes. */
interface Scene {
	zones: Record<string, Point[]>;
	ignore: string[];
	lines: Record<string, Point[]>;
	rules: Rule[];
	renamed?: Record<string, string>;
}

type ShapeKind = "zones" | "lines";

/** POST /api/v1/settings: one key of the site file is set or removed. */
interface Change {
	path: string[];
	value?: unknown;
	remove?: boolean;
}

/** A piece in one of the two videos of a pane. */
interface Loaded {
	video: HTMLVideoElement;
	which: number;
	piece: Piece;
}
