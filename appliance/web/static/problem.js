// @ts-check
// Why the appliance refuses something, in words. A proxy before it answers without a problem in JSON.
import { t } from "./texts.js";
/** @type {(detail: string | undefined, status: number) => string} */
export const refusalOf = (detail, status) => detail || t("The appliance answered {status}.", { status });
/** @type {(answer: Response) => Promise<string>} */
export const problemOf = async answer => refusalOf((await answer.json().catch(() => ({}))).detail, answer.status);
