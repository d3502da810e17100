// What the scripts take for granted of the page: elements are looked up by selectors that templates promise, and a test
// in a browser says whether they are there. Their types are not checked here.

interface ParentNode {
	querySelector(selectors: string): any;
	querySelectorAll(selectors: string): NodeListOf<any>;
}

interface Element {
	closest(selectors: string): any;
}

interface Document {
	addEventListener(type: string, listener: (event: any) => any, options?: boolean | AddEventListenerOptions): void;
}

interface HTMLElement {
	addEventListener(type: string, listener: (event: any) => any, options?: boolean | AddEventListenerOptions): void;
}

/** Safari's, and the browser's own of video frames. */
declare var ManagedMediaSource: typeof MediaSource | undefined;

/** The texts of a page that is not English: appliance/web/texts.py makes them. */
declare var TEXTS: (Record<string, any> & { plural(n: number): number }) | undefined;

interface Navigator {
	connection?: { saveData: boolean };
}

/** Service worker (static/sw.js). */
declare function importScripts(...urls: string[]): void;
declare function skipWaiting(): Promise<void>;
declare var registration: any;
declare var clients: any;
interface Event {
	waitUntil(work: any): void;
	addRoutes?(routes: object[]): Promise<void>;
	readonly request: Request;
	readonly preloadResponse: Promise<Response | undefined>;
	respondWith(answer: Promise<Response>): void;
	readonly data: any;
	readonly notification: { data: any; close(): void };
	readonly action: string;
}
