// One camera whose video fails: it alone is asked for in H.264, and after a while as it is recorded again.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { served } from "./served.js";

class Video extends EventTarget {
	requestVideoFrameCallback() {}
	removeAttribute() {}
	load() {}
}

test("a decoder that fails concerns its camera, which is asked for anew each time", async () => {
	const page = new EventTarget();
	const asked = [];
	Object.assign(globalThis, {
		MediaSource: { isTypeSupported: () => true },
		document: { documentElement: { lang: "en" }, addEventListener() {} },
		dispatchEvent: event => page.dispatchEvent(event),
		fetch: url => {
			const query = new URL(url, "http://box").searchParams;
			asked.push([query.getAll("camera").join(), query.getAll("h264").join()]);
			return new Promise(() => {});
		}
	});
	mock.timers.enable({ apis: ["setTimeout"] });
	const { LivePlayer, watch } = await served("live.js");
	const videos = [new Video(), new Video()];
	const stills = [];
	for (const [n, name] of ["gate", "dock"].entries()) new LivePlayer(name, videos[n], () => {}, () => stills.push(name));
	let end = () => {};
	const connect = () => {
		end();
		end = watch({ gate: {}, dock: {} }, "always");
	};
	page.addEventListener("asklive", connect);
	connect();
	const [, dock] = videos;
	const after = seconds => {
		asked.length = 0;
		mock.timers.tick(1000 * seconds);
		return asked;
	};
	assert.deepEqual(asked, [["gate,dock", ""]]);
	dock.dispatchEvent(new Event("error"));
	assert.deepEqual(stills, ["dock"]);
	assert.deepEqual(after(1), [["gate,dock", "dock"]]);
	assert.deepEqual(after(59), [["gate,dock", ""]], "the better way is tried again");
	dock.dispatchEvent(new Event("error"));
	assert.deepEqual(after(2), [["gate,dock", "dock"]]);
	dock.dispatchEvent(new Event("error"));
	assert.deepEqual(after(4), [["gate,dock", "dock"]], "H.264 failed, too: it does not stay on stills");
	for (const video of videos) video.dispatchEvent(new Event("error"));
	assert.deepEqual(after(10), [["gate,dock", "gate,dock"]], "once for all that failed together");
});
