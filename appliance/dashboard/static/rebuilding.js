// @ts-check
// Lists of fields that a change builds anew while a person works in them. What is pressed still gets its click, and what
// has the focus keeps it: a field tells its change when the next one is pressed or reached by Tab, which would be gone.
const CONTROLS = "input, select, button, summary";

export class Rebuilding {
	/** @type {Element | null} what the pointer is down on; a choice until it loses the focus, for its list may be open */
	pressed = null;
	due = 0;
	/** @type {EventTarget | null} the field of a list with typed text that no change has told yet */
	typing = null;
	/**
	 * @param {any[]} lists elements; the children of each are its rows
	 * @param {() => void} build
	 */
	constructor(lists, build) {
		this.lists = lists;
		this.build = build;
		addEventListener("pointerdown", ({ button, target }) => (this.pressed = button ? null : /** @type {Element} */ (target)), true);
		for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => this.pressed?.matches("select") || this.release("pressed"), true);
		addEventListener("input", ({ target }) => (this.typing = lists.some(each => each.contains(target)) ? target : null), true);
		for (const kind of ["change", "focusout"])
			for (const held of /** @type {const} */ (["typing", "pressed"])) addEventListener(kind, ({ target }) => target === this[held] && this.release(held), true);
	}
	/** @param {"pressed" | "typing"} held what no longer holds a build up */
	release(held) {
		this[held] = null;
		if (this.due) this.soon();
	}
	soon() {
		clearTimeout(this.due);
		this.due = setTimeout(() => this.pressed || this.typing || this.now());
	}
	now() {
		clearTimeout(this.due);
		this.due = 0;
		this.typing = null;
		const restore = this.focused();
		this.build();
		restore();
	}
	/** @returns {() => void} what gives the focus to the control that took the place of the one that has it */
	focused() {
		const held = /** @type {any} */ (document.activeElement);
		const list = this.lists.find(each => each.contains(held));
		if (!list) return () => {};
		const row = [...list.children].findIndex(each => each.contains(held));
		const place = [...list.children[row].querySelectorAll(CONTROLS)].indexOf(held);
		const { selectionStart, selectionEnd } = held;
		return () => {
			const control = list.children[row]?.querySelectorAll(CONTROLS)[place];
			control?.focus({ preventScroll: true });
			if (typeof selectionStart === "number" && typeof control?.selectionStart === "number") control.setSelectionRange(selectionStart, selectionEnd);
			else control?.select?.();
		};
	}
}
